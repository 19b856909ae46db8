// Puts Evenkeel between the two sides of Connect's conformance suite.
//
//	conformance-between server EVENKEEL SERVER...
//	conformance-between server-http1 EVENKEEL SERVER...
//	conformance-between server-http2 EVENKEEL SERVER...
//	conformance-between client EVENKEEL CLIENT...
//
// A server speaks the version of HTTP that its clients do, or always the one that is named.
//
// To the suite it is the server, or the client, under test. The one that it starts gets
// what the suite says, with the addresses changed: see server.go and client.go.
package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// The longest message of the suite, which has bodies of up to some 200 KiB.
const messageMax = 16 << 20

// How long a program has to say where it listens, and then to end.
const (
	startLimit = 10 * time.Second
	endLimit   = time.Second
)

func main() {
	// Children end with the thread that has started them.
	runtime.LockOSThread()
	if len(os.Args) < 4 {
		fail(fmt.Errorf("a role, Evenkeel's program, and the program behind or before it"))
	}
	role, evenkeel, other := os.Args[1], os.Args[2], os.Args[3:]
	var err error
	switch role {
	case "server":
		err = beServer(evenkeel, other, asClients)
	case "server-http1":
		err = beServer(evenkeel, other, http1)
	case "server-http2":
		err = beServer(evenkeel, other, http2)
	case "client":
		err = beClient(evenkeel, other)
	default:
		err = fmt.Errorf("no such role: %q", role)
	}
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "conformance-between:", err)
	os.Exit(1)
}

// A program that ends with this one.
func command(program string, args ...string) *exec.Cmd {
	it := exec.Command(program, args...)
	it.Stderr = os.Stderr
	it.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return it
}

// Ends a program, and by force what does not end in time.
func end(it *exec.Cmd) {
	_ = it.Process.Signal(syscall.SIGTERM)
	late := time.AfterFunc(endLimit, func() { _ = it.Process.Kill() })
	defer late.Stop()
	_ = it.Wait()
}

// Waits until the suite says that the time has come.
func untilTold() {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM, syscall.SIGINT)
	<-told
}

// Reads a message behind its length.
func readMessage(from io.Reader) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(from, length[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(length[:])
	if size > messageMax {
		return nil, fmt.Errorf("a message of %d bytes", size)
	}
	message := make([]byte, size)
	_, err := io.ReadFull(from, message)
	return message, err
}

// Writes a message behind its length.
func writeMessage(to io.Writer, message []byte) error {
	length := binary.BigEndian.AppendUint32(nil, uint32(len(message)))
	_, err := to.Write(append(length, message...))
	return err
}
