package main

import (
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/compute/weights"
)

// loadProgress estimates how far a model is loaded: its files are read, and its weights are packed, in memory of this process.
type loadProgress struct {
	total int64 // bytes of both
	begin int64 // bytes in memory before
	most  int
}

// percent returns the share of a model that is loaded, of the bytes that are in memory now. It never falls: the kernel takes back the
// pages of files that it needs elsewhere.
func (p *loadProgress) percent(resident int64) int {
	const most = 99 // the end is another line
	if p.total > 0 {
		p.most = max(p.most, int(min(100*max(0, resident-p.begin)/p.total, most)))
	}
	return p.most
}

// loadingMessage is the message of the lines of progress.
const loadingMessage = "loading the model"

// reportLoading logs the progress of a model that loads at each tick, until stop is called. resident returns the bytes in memory.
func reportLoading(p loadProgress, ticks <-chan time.Time, resident func() int64, log zerolog.Logger) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		last := -1
		for {
			select {
			case <-done:
				return
			case <-ticks:
				if now := p.percent(resident()); now != last {
					last = now
					log.Info().Int("percent", now).Msg(loadingMessage)
				}
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

// watchLoading logs once a second how far the model is loaded. What is wrong with the model is the loader's to say.
func watchLoading(o *compute.Options, log zerolog.Logger) (stop func()) {
	program, err := compute.ReadProgram(o.Dir)
	if err != nil || program.SetWeights(o.Weights) != nil {
		return func() {}
	}
	p := loadProgress{total: int64(sim.WeightBytes(program)) + modelBytes(o.Dir), begin: residentBytes()}
	ticker := time.NewTicker(time.Second)
	report := reportLoading(p, ticker.C, residentBytes, log)
	return func() {
		ticker.Stop()
		report()
	}
}

// modelBytes returns the size of the files with weights at a model's path.
func modelBytes(path string) (sum int64) {
	entries, err := os.ReadDir(path)
	if err != nil { // a GGUF file
		if info, err := os.Stat(path); err == nil {
			sum = info.Size()
		}
		return sum
	}
	begin, end := "", ".safetensors"
	if weights.Format(path) == "pytorch" {
		begin, end = "pytorch_model", ".bin"
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && strings.HasPrefix(e.Name(), begin) && strings.HasSuffix(e.Name(), end) {
			sum += info.Size()
		}
	}
	return sum
}

// residentBytes returns the bytes of this process in memory, of files and its own. 0 is unknown.
func residentBytes() int64 {
	fields := strings.Fields(text(os.DirFS("/"), "proc/self/statm"))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
