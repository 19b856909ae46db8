// Go's own client of HTTP/2, against the program over TLS:
//
//	go run client.go URL CA
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"
)

func check(ok bool, what ...any) {
	if !ok {
		fmt.Fprintln(os.Stderr, what...)
		os.Exit(1)
	}
}

func main() {
	url := os.Args[1]
	pem, err := os.ReadFile(os.Args[2])
	check(err == nil, err)
	roots := x509.NewCertPool()
	check(roots.AppendCertsFromPEM(pem), "no certificate")
	client := &http.Client{
		Timeout: 20 * time.Second,
		Transport: &http.Transport{
			ForceAttemptHTTP2: true,
			TLSClientConfig:   &tls.Config{RootCAs: roots},
		},
	}

	ask := func(request *http.Request) (*http.Response, []byte) {
		response, err := client.Do(request)
		check(err == nil, err)
		check(response.ProtoMajor == 2, response.Proto)
		body, err := io.ReadAll(response.Body)
		check(err == nil, err)
		response.Body.Close()
		return response, body
	}
	get := func(path string) *http.Request {
		request, err := http.NewRequest("GET", url+path, nil)
		check(err == nil, err)
		return request
	}

	// One connection, and then many streams at once on it.
	_, body := ask(get("/ping"))
	check(string(body) == "pong", string(body))
	var waits sync.WaitGroup
	for i := 0; i < 200; i++ {
		size := 10000 + i
		waits.Add(1)
		go func() {
			defer waits.Done()
			response, body := ask(get(fmt.Sprintf("/custom-payload?size=%d", size)))
			check(response.StatusCode == 200 && len(body) == size, response.Status, len(body))
		}()
	}
	waits.Wait()

	// A body without a length, with trailers both ways.
	sent := bytes.Repeat([]byte("0123456789"), 5000)
	request, err := http.NewRequest("POST", url+"/echo", io.MultiReader(bytes.NewReader(sent)))
	check(err == nil, err)
	request.Trailer = http.Header{"X-Checked": {"yes"}}
	response, body := ask(request)
	check(bytes.Equal(body, sent), "echoed", len(body))
	check(response.Trailer.Get("X-Checked") == "yes", response.Trailer)

	// A request that is given up, beside one that is not.
	abandoned, abandon := context.WithCancel(context.Background())
	waits.Add(1)
	go func() {
		defer waits.Done()
		_, err := client.Do(get("/slow/9000").WithContext(abandoned))
		check(err != nil, "a response to a request that was given up")
	}()
	_, body = ask(get("/slow/200"))
	abandon()
	waits.Wait()
	check(string(body) == "pong", string(body))

	_, body = ask(get("/chunked/3000000"))
	check(len(body) == 3000000, len(body))
	fmt.Println("done")
}
