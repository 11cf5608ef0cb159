// Command schemas checks guided decoding against JSON schemas: generated ones, and those of a file. It draws random answers
// from the masks of each schema and validates them with another library, and it feeds a file's instances token by token.
//
// It must not know how a grammar is compiled: it uses a tokenizer's grammars as a worker does.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/tokenizer"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "schemas:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

// errMisses is the error of a run with misses.
var errMisses = errors.New("there were misses")

type options struct {
	model     string
	file      string
	generated int
	seed      uint64
	answers   int
	tokens    int
	verbose   bool
}

func run(args []string, out io.Writer) error {
	var o options
	flags := pflag.NewFlagSet("schemas", pflag.ContinueOnError)
	flags.StringVar(&o.model, "model", "models/tiny-chat", "folder of the tokenizer")
	flags.StringVar(&o.file, "schemas", "",
		"schemas.json, or its folder: a list of objects with name, schema, and tests with data and valid; default none")
	flags.IntVar(&o.generated, "generated", 500, "number of generated schemas")
	flags.Uint64Var(&o.seed, "seed", 1, "seed of the schemas and the answers")
	flags.IntVar(&o.answers, "answers", 4, "answers drawn for each schema")
	flags.IntVar(&o.tokens, "tokens", 600, "longest answer, in tokens")
	flags.BoolVar(&o.verbose, "verbose", false, "list refused schemas too")
	if err := flags.Parse(args); err != nil {
		return err
	}
	cases := generate(o.seed, o.generated)
	if o.file != "" {
		read, err := readCases(o.file)
		if err != nil {
			return err
		}
		cases = append(cases, read...)
	}
	tok, err := tokenizer.Load(o.model)
	if err != nil {
		return err
	}
	defer tok.Close()
	c, err := newChecker(tok, &o)
	if err != nil {
		return err
	}
	results := c.all(cases)
	return report(out, cases, results, &o)
}

// testCase is a schema with instances.
type testCase struct {
	Name   string          `json:"name"`
	Schema json.RawMessage `json:"schema"`
	Tests  []instance      `json:"tests"`
}

type instance struct {
	Data  json.RawMessage `json:"data"`
	Valid bool            `json:"valid"`
}

func readCases(path string) ([]testCase, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "schemas.json")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var cases []testCase
	if err := json.Unmarshal(data, &cases); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return cases, nil
}

// all checks all cases, on all processors.
func (c *checker) all(cases []testCase) []result {
	results, next := make([]result, len(cases)), make(chan int)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := range next {
				results[i] = c.check(&cases[i], rand.New(rand.NewPCG(c.o.seed, uint64(i))))
			}
		})
	}
	for i := range cases {
		next <- i
	}
	close(next)
	wg.Wait()
	return results
}

// report writes counts and misses.
func report(out io.Writer, cases []testCase, results []result, o *options) error {
	var sum result
	refused, misses := 0, 0
	for i := range results {
		r := &results[i]
		if r.refused != "" {
			refused++
			if o.verbose {
				fmt.Fprintf(out, "refused %s: %s\n", cases[i].Name, r.refused)
			}
		}
		for _, miss := range r.misses {
			misses++
			fmt.Fprintf(out, "miss %s: %s\n", cases[i].Name, miss)
		}
		sum.add(r)
	}
	slices.Sort(sum.times)
	fmt.Fprintf(out, "%d schemas: %d compiled, %d refused with a reason\n", len(cases), len(cases)-refused, refused)
	fmt.Fprintf(out, "%d answers: %d ended and are valid, %d were cut and are valid beginnings, %d ended and are not valid\n",
		sum.answers, sum.ended-sum.invalid, sum.answers-sum.ended, sum.invalid)
	fmt.Fprintf(out, "%d valid instances: %d accepted, %d not; %d not valid: %d refused, %d accepted\n",
		sum.valid, sum.accepted, sum.valid-sum.accepted, sum.wrong, sum.wrong-sum.leaked, sum.leaked)
	fmt.Fprintf(out, "%d masks: median %d µs, p99 %d µs, most %d µs\n", len(sum.times), at(sum.times, 0.5), at(sum.times, 0.99),
		at(sum.times, 1))
	if misses > 0 {
		return fmt.Errorf("%w: %d", errMisses, misses)
	}
	return nil
}

func at(sorted []int32, share float64) int32 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]
}
