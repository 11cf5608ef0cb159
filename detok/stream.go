// Package detok turns token ids into text one by one. It emits whole characters only and loses no byte: the joined pieces of a Stream equal
// Decode of all its ids, but for a character that Cut leaves out. A Stream has no state but that of its ids, so pushing them again rebuilds
// it.
//
// It must not know requests, actors or how ids are sampled.
package detok

import "slices"

// Decoder is the part of a tokenizer that a Stream needs; *tokenizer.Tokenizer implements it.
type Decoder interface {
	// TokenBytes are the bytes that id stands for within a text; nil if there is no such id.
	TokenBytes(id int32) []byte
	IsSpecial(id int32) bool
	// IsByte says that id is one byte of a character, decoded together with its neighbors.
	IsByte(id int32) bool
	// ByteLevel says that a text is the joined TokenBytes.
	ByteLevel() bool
	Decode(ids []int32, skipSpecial bool) (string, error)
}

// Options configure a Stream.
type Options struct {
	Stop        []string // the text ends before the first of these; empty ones and invalid UTF-8 are ignored
	IncludeStop bool     // the text ends after it
	KeepSpecial bool     // special tokens are text too
	Keep        []string // special tokens that are text in any case
}

// Stream makes the text of one sequence. It is for one goroutine.
type Stream struct {
	dec     Decoder
	o       Options
	text    textMaker
	stops   stopSet
	stopped bool
	found   string // the stop string that ended the text
}

// textMaker turns ids into text that will not change any more.
type textMaker interface {
	// push appends to dst the text that id has completed.
	push(dst []byte, id int32) []byte
	// flush appends the rest.
	flush(dst []byte) []byte
	// drop leaves out the beginning of a character at the end.
	drop()
}

// New returns a Stream without text.
func New(d Decoder, o Options) *Stream {
	s := &Stream{dec: d, o: o, stops: newStopSet(o.Stop)}
	if d.ByteLevel() {
		s.text = &byteText{dec: d}
	} else {
		s.text = &windowText{dec: d}
	}
	return s
}

// Push takes the next id. text is what it has completed: whole characters, without what may be the
// beginning of a stop string. stopped says that a stop string is complete; from then on Push and
// Flush give nothing. The stop string that is complete first wins. If several are complete at once,
// the one that begins first wins. This does not depend on how tokens cut the text.
// Ids outside the vocabulary (a model's padding) have no text.
func (s *Stream) Push(id int32) (text string, stopped bool) {
	if s.stopped {
		return "", true
	}
	if !s.o.KeepSpecial && s.dec.IsSpecial(id) && !s.keeps(id) || s.dec.TokenBytes(id) == nil {
		return "", false
	}
	if b, ok := s.text.(*byteText); ok && len(s.stops.held) == 0 {
		if whole, ok := b.whole(id); ok && !s.stops.touches(whole) {
			return whole, false
		}
	}
	return s.emit(s.text.push(s.stops.held, id))
}

// keeps reports whether a special token is text in any case.
func (s *Stream) keeps(id int32) bool {
	return len(s.o.Keep) > 0 && slices.Contains(s.o.Keep, string(s.dec.TokenBytes(id)))
}

// Flush ends the text. An incomplete character becomes U+FFFD.
func (s *Stream) Flush() (text string) {
	if s.stopped {
		return ""
	}
	text, stopped := s.emit(s.text.flush(s.stops.held))
	if !stopped {
		text += string(s.stops.held)
	}
	s.stopped = true
	return text
}

// Cut ends a text that would continue, as Flush does. An incomplete character is left out, so that the text is a beginning of the whole
// one.
func (s *Stream) Cut() (text string) {
	s.text.drop()
	return s.Flush()
}

// StopString returns the stop string that ended the text, "" if none did.
func (s *Stream) StopString() string { return s.found }

// emit cuts pending: the held text and the new bytes.
func (s *Stream) emit(pending []byte) (text string, stopped bool) {
	start, end, found := s.stops.scan(pending)
	switch {
	case found && s.o.IncludeStop:
		text, s.found = string(pending[:end]), string(pending[start:end])
	case found:
		text, s.found = string(pending[:start]), string(pending[start:end])
	default:
		text = string(pending[:start])
		s.stops.hold(pending, start)
	}
	s.stopped = found
	return text, found
}
