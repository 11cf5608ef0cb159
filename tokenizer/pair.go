package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/millrace/millrace/compute/weights"
)

// pairPiece is a part of what a post-processor makes of two texts.
type pairPiece struct {
	text int     // 1 or 2: all tokens of that text; 0: ids
	ids  []int32 // special tokens
	kind int     // type of the tokens
}

// processor is a post-processor of tokenizer.json. Each type has some of its members.
type processor struct {
	Type       string      `json:"type"`
	Processors []processor `json:"processors"` // of Sequence
	Pair       []struct {  // of TemplateProcessing
		Sequence, SpecialToken *struct {
			ID   string `json:"id"`
			Kind int    `json:"type_id"`
		}
	} `json:"pair"`
	Special map[string]struct {
		IDs []int32 `json:"ids"`
	} `json:"special_tokens"`
	CLS namedID `json:"cls"` // of BertProcessing and RobertaProcessing
	SEP namedID `json:"sep"`
}

// namedID is ["[CLS]", 2].
type namedID struct{ id int32 }

func (n *namedID) UnmarshalJSON(raw []byte) error {
	var pair []json.RawMessage
	if err := json.Unmarshal(raw, &pair); err != nil || len(pair) != 2 {
		return fmt.Errorf("found %.40s, expected a token and its id", raw)
	}
	return json.Unmarshal(pair[1], &n.id)
}

// newPair reads what the post_processor of a tokenizer.json makes of two texts; empty: there is none. An error says why it makes nothing
// that is known.
func newPair(raw json.RawMessage) ([]pairPiece, error) {
	var p *processor
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &p); err != nil {
			return nil, fmt.Errorf("post_processor: found %s, expected one of tokenizers", weights.JSONFault(err))
		}
	}
	pieces, err := p.pair()
	if err != nil || pieces != nil {
		return pieces, err
	}
	return []pairPiece{{text: 1}, {text: 2, kind: 1}}, nil // as tokenizers without a template
}

// pair returns nil for one without a template.
func (p *processor) pair() (pieces []pairPiece, err error) {
	if p == nil {
		return nil, nil
	}
	switch p.Type {
	case "ByteLevel":
		return nil, nil
	case "BertProcessing":
		cls, sep := []int32{p.CLS.id}, []int32{p.SEP.id}
		return []pairPiece{{ids: cls}, {text: 1}, {ids: sep}, {text: 2, kind: 1}, {ids: sep, kind: 1}}, nil
	case "RobertaProcessing":
		cls, sep := []int32{p.CLS.id}, []int32{p.SEP.id}
		return []pairPiece{{ids: cls}, {text: 1}, {ids: sep}, {ids: sep}, {text: 2}, {ids: sep}}, nil
	case "TemplateProcessing":
		return p.template()
	case "Sequence":
		for i := range p.Processors {
			more, err := p.Processors[i].pair()
			if err != nil {
				return nil, err
			}
			if more != nil && pieces != nil {
				return nil, errors.New("post_processor: found several templates, expected one")
			}
			if more != nil {
				pieces = more
			}
		}
		return pieces, nil
	}
	return nil, fmt.Errorf("post_processor: found type %.40q, expected one of tokenizers", p.Type)
}

func (p *processor) template() (pieces []pairPiece, err error) {
	for i, one := range p.Pair {
		switch {
		case one.Sequence != nil && (one.Sequence.ID == "A" || one.Sequence.ID == "B"):
			pieces = append(pieces, pairPiece{text: 1 + int(one.Sequence.ID[0]-'A'), kind: one.Sequence.Kind})
		case one.SpecialToken != nil && p.Special[one.SpecialToken.ID].IDs != nil:
			pieces = append(pieces, pairPiece{ids: p.Special[one.SpecialToken.ID].IDs, kind: one.SpecialToken.Kind})
		default:
			return nil, fmt.Errorf("post_processor: part %d of the template for pairs is none of a text and a known special token", i)
		}
	}
	kind := 0
	for i, piece := range pieces {
		if piece.kind != kind && (piece.kind != 1 || kind != 0) {
			return nil,
				fmt.Errorf("post_processor: part %d of the template for pairs has type %d after %d, expected 0 up to some part and 1 from there on", i, piece.kind, kind)
		}
		kind = piece.kind
	}
	return pieces, nil
}

// EncodePair turns two texts into ids, with the special tokens that the model's post-processor puts around and between them. second is
// where the tokens of type 1 begin: len(ids) if all are of type 0. Errors are those of Encode, and ErrFile for a post-processor that is not
// known.
func (t *Tokenizer) EncodePair(first, other string) (ids []int32, second int, err error) {
	if t.pairFault != nil {
		return nil, 0, fmt.Errorf("%w: %w", ErrFile, t.pairFault)
	}
	if t.bare == nil && t.pair == nil { // of a GGUF file
		return nil, 0, fmt.Errorf("%w: no template for pairs of texts", ErrFile)
	}
	var texts [2][]int32
	for i, text := range []string{first, other} {
		if texts[i], err = t.Encode(text, false); err != nil {
			return nil, 0, err
		}
	}
	second = -1
	for _, piece := range t.pair {
		if piece.kind == 1 && second < 0 {
			second = len(ids)
		}
		more := piece.ids
		if piece.text > 0 {
			more = texts[piece.text-1]
		}
		ids = append(ids, more...)
	}
	if second < 0 {
		second = len(ids)
	}
	return ids, second, nil
}
