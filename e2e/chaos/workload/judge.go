package workload

import (
	"fmt"
	"reflect"
)

// Oracle holds the answers of one kind of workers without faults.
type Oracle struct {
	Kind    string
	Answers map[int]*Answer // by stream

	// Replayed are the answers of unseeded streams by request id, from which the seed follows.
	Replayed map[string]*Answer
}

// Expect makes an oracle of an undisturbed run. A lost stream is an error.
func Expect(kind string, results []Result) (*Oracle, error) {
	o := &Oracle{Kind: kind, Answers: map[int]*Answer{}, Replayed: map[string]*Answer{}}
	for _, r := range results {
		if r.Answer.Err != nil {
			return nil, fmt.Errorf("undisturbed run of %s: %s: %w", kind, r.Stream, r.Answer.Err)
		}
		o.Answers[r.ID] = r.Answer
		if r.Unseeded() {
			o.Replayed[r.RequestID] = r.Answer
		}
	}
	return o, nil
}

// expects returns the answer to compare a result with; nil if an unseeded stream was not replayed.
func (o *Oracle) expects(r *Result) *Answer {
	if r.Unseeded() {
		return o.Replayed[r.RequestID]
	}
	return o.Answers[r.ID]
}

// Distinct returns the number of streams that two oracles answer differently. In the others a splice
// does not show.
func Distinct(a, b *Oracle) (n int) {
	for id, answer := range a.Answers {
		if other := b.Answers[id]; other != nil && !reflect.DeepEqual(answer.Choices, other.Choices) {
			n++
		}
	}
	return n
}

// Outcome counts the verdicts of a run.
type Outcome struct {
	Streams    int            `json:"streams"`
	Completed  int            `json:"completed"`
	ByKind     map[string]int `json:"by_kind,omitempty"`     // completed, by the oracle whose answer it is; "any" where all agree
	Unreplayed int            `json:"unreplayed"`            // completed ones without a seed that were only checked in themselves
	NoEqual    int            `json:"no_equal"`              // ended as no_equal_worker after a right beginning, where a scenario allows it
	EndedOf    map[string]int `json:"no_equal_of,omitempty"` // of those, by the only oracle that begins so
	Refused    int            `json:"refused"`               // and sent again, where a scenario has overload
	Lost       int            `json:"lost"`
	Duplicated int            `json:"duplicated"`
	Missing    int            `json:"missing"`
	Spliced    int            `json:"spliced"`
	Differing  int            `json:"differing"`
	Tokens     int            `json:"tokens"`
	Wrong      []string       `json:"wrong,omitempty"` // the first few faults that were found
}

// keepWrong bounds the number of reported faults for each verdict.
const keepWrong = 8

// Judge compares every answer with those of the oracles. Each must be a whole answer of one of them.
func Judge(oracles []*Oracle, results []Result) Outcome {
	o := Outcome{Streams: len(results), ByKind: map[string]int{}, EndedOf: map[string]int{}}
	said := map[Verdict]int{}
	for i := range results {
		r := &results[i]
		verdict, err := o.judge(oracles, r)
		switch verdict {
		case Whole:
			o.Completed++
		case NoEqual:
			o.NoEqual++
		case Lost:
			o.Lost++
		case Duplicated:
			o.Duplicated++
		case Missing:
			o.Missing++
		case Spliced:
			o.Spliced++
		case Differing:
			o.Differing++
		}
		o.Tokens += r.Answer.tokens()
		o.Refused += r.Refused
		if err != nil && verdict != NoEqual && said[verdict] < keepWrong {
			said[verdict]++
			o.Wrong = append(o.Wrong, fmt.Sprintf("%s: %s: %v", r.Stream, verdict, err))
		}
	}
	return o
}

// judge returns the best verdict over all oracles.
func (o *Outcome) judge(oracles []*Oracle, r *Result) (best Verdict, why error) {
	var kinds []string // kinds of the oracles with the best verdict
	for _, oracle := range oracles {
		expected := oracle.expects(r)
		if expected == nil { // the answer may be that of this oracle
			best, kinds = "", nil
			break
		}
		verdict, err := Compare(expected, r.Answer)
		if best == "" || better(verdict, best) {
			best, why, kinds = verdict, err, nil
		}
		if verdict == best {
			kinds = append(kinds, oracle.Kind)
		}
	}
	if best == "" {
		if best, why = r.alone(); best == Whole {
			o.Unreplayed++
		}
	}
	switch {
	case best == NoEqual && r.Answer.tokens() == 0: // it can begin again at any worker
		return Lost, why
	case best == NoEqual && len(kinds) == 1:
		o.EndedOf[kinds[0]]++
	case best == Whole && len(kinds) == 1:
		o.ByKind[kinds[0]]++
	case best == Whole && len(kinds) > 1:
		o.ByKind["any"]++
	}
	return best, why
}

// alone judges an answer by itself.
func (r *Result) alone() (Verdict, error) {
	if r.Answer.Err != nil {
		return lost(r.Answer)
	}
	switch n, said := r.Answer.tokens(), r.Answer.Usage.CompletionTokens; {
	case !r.Unseeded():
		return Differing, fmt.Errorf("there is no answer to compare it with")
	case n > said:
		return Duplicated, fmt.Errorf("found %d tokens, and a usage of %d", n, said)
	case n < said:
		return Missing, fmt.Errorf("found %d tokens, and a usage of %d", n, said)
	}
	return Whole, nil
}

// Good says whether every stream is whole or ended in an allowed way.
func (o *Outcome) Good() bool { return o.Streams > 0 && o.Completed+o.NoEqual == o.Streams }
