// The futures of a run in Go: prepare starts a goroutine, resolve claims it once by tool and argument bytes.
// future CASE ROUNDS prints {"value": …}: nanoseconds per future for lookup1 and lookup64, milliseconds for sleep64.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"
)

type request struct {
	tool string
	args []byte
}

type pending struct {
	request  request
	response []byte
	done     chan struct{}
	cancel   context.CancelFunc
}

type run struct {
	ctx     context.Context
	next    uint32
	table   map[uint32]*pending
	workers sync.WaitGroup
}

type item struct {
	ID   int      `json:"id"`
	Name string   `json:"name"`
	Tags []string `json:"tags"`
}

var items = map[string]item{}

func lookup(args []byte) []byte {
	var list []string
	if err := json.Unmarshal(args, &list); err != nil {
		panic(err)
	}
	out, err := json.Marshal(map[string]any{"n": 1, "ok": []any{items[list[0]]}})
	if err != nil {
		panic(err)
	}
	return out
}

func nap([]byte) []byte {
	time.Sleep(time.Millisecond)
	return []byte(`{"n":0,"ok":[]}`)
}

var tools = map[string]func([]byte) []byte{"lookup": lookup, "nap": nap}

func (r *run) prepare(req request) uint32 {
	if len(r.table) >= 64 {
		return 0
	}
	_, cancel := context.WithCancel(r.ctx)
	p := &pending{request: req, done: make(chan struct{}), cancel: cancel}
	r.next++
	r.table[r.next] = p
	r.workers.Add(1)
	go func() {
		defer r.workers.Done()
		defer cancel()
		p.response = tools[req.tool](req.args)
		close(p.done)
	}()
	return r.next
}

func (r *run) resolve(handle uint32, req request) []byte {
	p := r.table[handle]
	delete(r.table, handle)
	defer p.cancel()
	if p.request.tool != req.tool || !bytes.Equal(p.request.args, req.args) {
		panic("mismatch")
	}
	select {
	case <-p.done:
		return p.response
	case <-r.ctx.Done():
		return nil
	}
}

func batch(r *run, tool string, n int) time.Duration {
	handles := make([]uint32, n)
	began := time.Now()
	for i := range handles {
		args, _ := json.Marshal([]string{"k" + strconv.Itoa(i%64+1)})
		handles[i] = r.prepare(request{tool, args})
	}
	for i, handle := range handles {
		args, _ := json.Marshal([]string{"k" + strconv.Itoa(i%64+1)})
		var out map[string]any
		if err := json.Unmarshal(r.resolve(handle, request{tool, args}), &out); err != nil {
			panic(err)
		}
	}
	return time.Since(began)
}

func main() {
	for i := 1; i <= 64; i++ {
		items["k"+strconv.Itoa(i)] = item{i, "item " + strconv.Itoa(i), []string{"a", "b"}}
	}
	rounds, _ := strconv.Atoi(os.Args[2])
	r := &run{ctx: context.Background(), table: map[uint32]*pending{}}
	tool, n, scale := "lookup", 1, 1.0
	switch os.Args[1] {
	case "lookup64":
		n, scale = 64, 1.0/64
	case "sleep64":
		tool, n, scale = "nap", 64, 1e-6
	}
	took := make([]float64, rounds)
	for i := range took {
		took[i] = float64(batch(r, tool, n)) * scale
	}
	r.workers.Wait()
	sort.Float64s(took)
	fmt.Printf("{\"value\":%g}\n", took[len(took)/2])
}
