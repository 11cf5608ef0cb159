package weights

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Bounds of what becomes larger in memory than it is in the file: many times what any model has.
const (
	maxTensors = 1 << 17 // of a file
	maxIndex   = 1 << 19 // of a model
	maxToken   = 4 << 20 // bytes of a text or number
	maxDepth   = 64
)

// bounded is a reader for a json.Decoder, whose buffer grows as long as it has no whole token.
type bounded struct{ bytes.Reader }

func (r *bounded) Read(p []byte) (int, error) {
	if len(p) > 2*maxToken {
		return 0, fault("", fmt.Sprintf("%d bytes at most", maxToken), "a text or number of more")
	}
	return r.Reader.Read(p)
}

// jsonReader reads a JSON text by its tokens: as Go values the whole can be many times as large as the file.
type jsonReader struct{ *json.Decoder }

func newJSON(file []byte) jsonReader {
	r := jsonReader{json.NewDecoder(&bounded{*bytes.NewReader(file)})}
	r.UseNumber()
	return r
}

// object reads a JSON object of at most that number of members: the member function is called
// after each key and reads the value. A key that comes twice is an error.
func (r jsonReader) object(most int, member func(key string) error) error {
	if err := r.begin('{', "a JSON object"); err != nil {
		return err
	}
	seen := map[string]bool{}
	for r.More() {
		key, err := r.text()
		if err != nil {
			return err
		}
		if seen[key] {
			return fault(key, "each name once", "the name twice")
		}
		if len(seen) == most {
			return fault(key, fmt.Sprintf("%d at most", most), "more names than %d", most)
		}
		seen[key] = true
		if err := member(key); err != nil {
			return err
		}
	}
	_, err := r.Token()
	return err
}

// integers reads a list of at most that number of integers.
func (r jsonReader) integers(most int) ([]int64, error) {
	if err := r.begin('[', "a list of integers"); err != nil {
		return nil, err
	}
	list := []int64{}
	for r.More() {
		tok, err := r.Token()
		if err != nil {
			return nil, err
		}
		n, _ := tok.(json.Number)
		i, err := n.Int64()
		if err != nil {
			return nil, fault("", "an integer of 64 bits", "%s", kindOfToken(tok))
		}
		if len(list) == most {
			return nil, fault("", fmt.Sprintf("%d at most", most), "more than %d numbers", most)
		}
		list = append(list, i)
	}
	_, err := r.Token()
	return list, err
}

func (r jsonReader) begin(want json.Delim, expected string) error {
	tok, err := r.Token()
	if err == nil && tok != want {
		err = fault("", expected, "%s", kindOfToken(tok))
	}
	return err
}

// kindOfToken names a token, or the value that begins with it.
func kindOfToken(tok json.Token) string {
	switch tok {
	case json.Delim('['):
		return "an array"
	case json.Delim('{'):
		return "an object"
	case nil:
		return "null"
	}
	return fmt.Sprintf("%.40v", tok)
}

func (r jsonReader) text() (string, error) {
	tok, err := r.Token()
	s, ok := tok.(string)
	if err == nil && !ok {
		err = fault("", "a text", "%s", kindOfToken(tok))
	}
	return s, err
}

// ends says what is after the last value.
func (r jsonReader) ends() error {
	if _, err := r.Token(); !errors.Is(err, io.EOF) {
		return fault("", "one JSON object", "more after its end")
	}
	return nil
}

// skip reads a value of any kind.
func (r jsonReader) skip() error {
	for depth := 0; ; {
		tok, err := r.Token()
		if err != nil {
			return err
		}
		switch tok {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return nil
		}
		if depth > maxDepth {
			return fault("", fmt.Sprintf("%d at most", maxDepth), "a depth of %d", depth)
		}
	}
}

// within puts the tensor's name on an error from inside its entry.
func within(tensor string, err error) error {
	if err == nil {
		return nil
	}
	if f, ok := errors.AsType[*FormatError](err); ok {
		if f.Name == "" {
			f.Name = tensor
		} else {
			f.Name = tensor + "." + f.Name
		}
		return f
	}
	return fault(tensor, "a valid entry", "%s", JSONFault(err))
}

// headerFault turns a JSON error into a FormatError.
func headerFault(err error) error {
	if f, ok := errors.AsType[*FormatError](err); ok {
		f.Name = cmp.Or(f.Name, "header")
		return f
	}
	return fault("header", "valid JSON", "%s", JSONFault(err))
}
