//go:build tools

// What is built of gRPC's interoperability tests: see `scripts/need`.
package interop

import (
	_ "google.golang.org/grpc/interop/client"
	_ "google.golang.org/grpc/interop/http2"
	_ "google.golang.org/grpc/interop/server"
)
