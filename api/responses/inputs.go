package responses

import (
	"encoding/json"
	"slices"
	"strconv"

	"github.com/millrace/millrace/api"
)

// DeletedResponse is the answer of a deletion.
type DeletedResponse struct {
	ID      string `json:"id"`
	Object  string `json:"object" doc:"Always \"response\""`
	Deleted bool   `json:"deleted"`
}

// EncodeDeleted encodes the answer of the deletion of a stored response.
func EncodeDeleted(id string) ([]byte, error) {
	return json.Marshal(DeletedResponse{ID: id, Object: "response", Deleted: true})
}

// ItemList is a page of input items.
type ItemList struct {
	Object  string            `json:"object" doc:"Always \"list\""`
	Data    []json.RawMessage `json:"data"`
	FirstID *string           `json:"first_id"`
	LastID  *string           `json:"last_id"`
	HasMore bool              `json:"has_more"`
}

// Page says which items of a stored response's input a client wants.
type Page struct {
	limit     int
	ascending bool   // the first item first
	after     string // id of the item before the page; "": from the beginning
}

// DecodePage decodes the parameters of a list of input items: limit is 20 if it is "", and order is desc. An error is an *api.Error that
// names the parameter.
func DecodePage(limit, order, after string) (*Page, error) {
	const fallback, most = 20, 100
	p := &Page{limit: fallback, after: after}
	if limit != "" {
		var err error
		if p.limit, err = strconv.Atoi(limit); err != nil || p.limit < 1 || p.limit > most {
			return nil, api.Invalid("limit", "limit: found %.20q, expected a number from 1 to %d", limit, most)
		}
	}
	switch order {
	case "", "desc":
	case "asc":
		p.ascending = true
	default:
		return nil, api.Invalid("order", "order: found %.20q, expected asc or desc", order)
	}
	return p, nil
}

// Encode encodes the page of items, which come in the order of the input.
func (p *Page) Encode(items []json.RawMessage) ([]byte, error) {
	if !p.ascending {
		items = slices.Clone(items)
		slices.Reverse(items)
	}
	if p.after != "" {
		i := slices.IndexFunc(items, func(it json.RawMessage) bool { return idOf(it) == p.after })
		if i < 0 {
			return nil, api.Invalid("after", "after: found %s, expected the id of an item", api.Quote(p.after))
		}
		items = items[i+1:]
	}
	list := ItemList{Object: "list", Data: append([]json.RawMessage{}, items[:min(len(items), p.limit)]...), HasMore: len(items) > p.limit}
	if n := len(list.Data); n > 0 {
		first, last := idOf(list.Data[0]), idOf(list.Data[n-1])
		list.FirstID, list.LastID = &first, &last
	}
	return json.Marshal(list)
}

func idOf(item json.RawMessage) string {
	var it struct {
		ID string `json:"id"`
	}
	json.Unmarshal(item, &it) //nolint:errcheck // the server has encoded it
	return it.ID
}
