package grammar

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
)

// The tokens of fakeEngine: a letter each, a few longer ones, and two ends.
var fakeTokens = []string{"a", "b", "c", "<", "/", "t", ">", "</t>", "a</t>", ">b", "</t>b", "</s>", "<end>"}

const (
	endID      = 11
	otherEndID = 12
)

// fakeEngine compiles the text that the answer has to be: its programs allow a prefix of it.
type fakeEngine struct {
	compiled atomic.Int64
	live     atomic.Int64 // automatons
	held     int          // of a program
	block    chan struct{}
	begun    chan string
}

func (e *fakeEngine) Size() int { return len(fakeTokens) }
func (e *fakeEngine) Bytes(id int32) []byte {
	if id < 0 || int(id) >= len(fakeTokens) {
		return nil
	}
	return []byte(fakeTokens[id])
}
func (e *fakeEngine) Ends() []int32 { return []int32{endID, otherEndID} }

func (e *fakeEngine) Compile(_ Kind, source string) (Program, error) {
	e.compiled.Add(1)
	if e.begun != nil {
		e.begun <- source
	}
	if e.block != nil {
		<-e.block
	}
	if strings.HasPrefix(source, "bad") {
		return nil, fmt.Errorf("%w: %s", ErrSpec, source)
	}
	return &fakeProgram{e, source}, nil
}

type fakeProgram struct {
	engine *fakeEngine
	text   string
}

func (p *fakeProgram) Held() int { return p.engine.held }
func (p *fakeProgram) Start() (Automaton, error) {
	p.engine.live.Add(1)
	return &fakeAutomaton{p: p}, nil
}

type fakeAutomaton struct {
	p     *fakeProgram
	taken []string
}

func (a *fakeAutomaton) left() string {
	return strings.TrimPrefix(a.p.text, strings.Join(a.taken, ""))
}

func (a *fakeAutomaton) Mask(m Mask) error {
	m.fill(0)
	for id, token := range fakeTokens[:endID] {
		if strings.HasPrefix(a.left(), token) {
			m.allow(int32(id))
		}
	}
	if strings.HasPrefix(a.left(), "c") || a.left() == "" { // the text may end before a c
		m.allow(endID)
		m.allow(otherEndID)
	}
	return nil
}

func (a *fakeAutomaton) Advance(token int32) (ok, ended bool, err error) {
	text := fakeTokens[token]
	if !strings.HasPrefix(a.left(), text) {
		return false, false, nil
	}
	a.taken = append(a.taken, text)
	return true, a.left() == "", nil
}

func (a *fakeAutomaton) Forced([]int32) (int, error) { return 0, nil }

func (a *fakeAutomaton) Rollback(n int) error {
	if n > len(a.taken) {
		return errors.New("too far")
	}
	a.taken = a.taken[:len(a.taken)-n]
	return nil
}

func (a *fakeAutomaton) Close() { a.p.engine.live.Add(-1) }

// ids are the tokens of a text, in which they are divided by spaces.
func ids(text string) (list []int32) {
	for token := range strings.FieldsSeq(text) {
		for id, t := range fakeTokens {
			if t == token {
				list = append(list, int32(id))
			}
		}
	}
	return list
}
