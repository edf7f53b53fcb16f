package mappertest

import (
	"regexp"
	"runtime"
	"strings"
	"time"
)

// How often watchNetwork looks at all goroutines, and how many times in a row it must see them wait
// for the network before it panics.
const (
	lookEvery = time.Second
	looks     = 5
)

// watchNetwork panics if virtual time does not pass in a synctest bubble: a goroutine of the bubble
// waits for the network, and all others wait, too. Call the function bubble inside the bubble, and
// stop at the end. watchNetwork itself runs outside the bubble, in real time.
func watchNetwork() (bubble, stop func()) {
	name, stopped := make(chan string, 1), make(chan struct{})
	go func() {
		var watched string
		select {
		case watched = <-name:
		case <-stopped:
			return
		}
		ticker, last, same := time.NewTicker(lookEvery), "", 0
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-stopped:
				return
			}
			ids, stack := onNetwork(stacks(true), watched)
			if same++; ids == "" || ids != last {
				last, same = ids, 0
			}
			if same == looks {
				panic(standsStill + stack)
			}
		}
	}()
	return func() { name <- bubbleOf(stacks(false)) }, func() { close(stopped) }
}

// standsStill is the text of the panic of watchNetwork.
const standsStill = "mappertest: virtual time stands still, because this goroutine of the test waits for the " +
	"network. Time passes in a bubble of testing/synctest only while all goroutines wait for each other. A function " +
	"or a test has called a real server: let it call one in this process, for example by an http.Client with the " +
	"Transport emulator.HandlerTransport(handler).\n\n"

// stacks returns the stack of this goroutine, or the stacks of all goroutines, as text.
func stacks(all bool) string {
	for size := 1 << 16; ; size *= 2 {
		text := make([]byte, size)
		if n := runtime.Stack(text, all); n < size {
			return string(text[:n])
		}
	}
}

// header matches the first line of a goroutine's stack.
var header = regexp.MustCompile(`^goroutine (\d+) \[([^\]]*?)(?:, (synctest bubble \d+))?\]:`)

// bubbleOf returns the name of the synctest bubble in which the first of some goroutines runs.
func bubbleOf(stacks string) string {
	m := header.FindStringSubmatch(stacks)
	if m == nil {
		return ""
	}
	return m[3]
}

// onNetwork returns the IDs of a bubble's goroutines that wait for the network, and the stack of
// the first one. If any goroutine of the bubble can run, it returns nothing.
func onNetwork(stacks, bubble string) (ids, stack string) {
	for text := range strings.SplitSeq(stacks, "\n\n") {
		m := header.FindStringSubmatch(text)
		if m == nil || m[3] != bubble || bubble == "" {
			continue
		}
		switch state, _, _ := strings.Cut(m[2], ","); state {
		case "running", "runnable", "syscall":
			return "", ""
		case "IO wait":
			if ids += m[1] + " "; stack == "" {
				stack = text
			}
		}
	}
	return ids, stack
}
