//go:build tools

// What is built of Connect's conformance suite: see `scripts/need`.
package conformance

import (
	_ "connectrpc.com/conformance/cmd/connectconformance"
	_ "connectrpc.com/conformance/cmd/grpcserver"
	_ "connectrpc.com/conformance/cmd/referenceclient"
	_ "connectrpc.com/conformance/cmd/referenceserver"
)
