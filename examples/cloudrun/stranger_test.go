package main

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestStrangers opens connections that send no token, and whose headers or bodies arrive byte by
// byte. The service must close all of them. Meanwhile it must answer other requests.
func TestStrangers(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves out what waits for time-outs of a process")
	}
	t.Parallel()
	s := newSite(t)
	const each, patience = 40, 2 * time.Minute
	var strangers sync.WaitGroup
	for _, request := range []string{
		"POST /mapper/range HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
		"POST /mapper/range HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
		"POST /mapper/none HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
		"POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
		"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
		"POST /none HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
		"POST /mapper/range HTTP/1.1\r\nHost: x\r\nX-CloudTasks-TaskName: ",
	} {
		for range each {
			strangers.Go(func() {
				if err := drip(strings.TrimPrefix(s.url, "http://"), request, patience); err != nil {
					t.Errorf("%q: %v", request, err)
				}
			})
		}
	}
	for range 5 {
		if code, _ := s.send("GET", "/health", "", ""); code != 200 {
			t.Errorf("health: %d", code)
		}
	}
	strangers.Wait()
}

// drip sends the given part of a request at once, and then one byte after the other until the
// service closes the connection.
func drip(addr, request string, patience time.Duration) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	go func() {
		_, err := io.WriteString(conn, request)
		for err == nil {
			time.Sleep(50 * time.Millisecond)
			_, err = conn.Write([]byte("x"))
		}
	}()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err = io.Copy(io.Discard, conn); err != nil && strings.Contains(err.Error(), "timeout") {
		return fmt.Errorf("it is open after %v", patience)
	}
	return nil // the service may have reset the connection
}
