package openai

import (
	"strings"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
)

// Paths are the names that fields of a chat have in the request of another API, by their names in the chat. A name stands for the fields
// inside it too, unless they have one of their own.
type Paths map[string]string

// Rename returns an error with the name that the client knows its field by. nil stays nil.
func (p Paths) Rename(err error) error {
	if err == nil {
		return nil
	}
	e := *api.AsError(err)
	if name := p.name(e.Param); name != e.Param {
		e.Message, e.Param = strings.Replace(e.Message, e.Param, name, 1), name
	}
	return &e
}

// RenameGrammar gives the grammar of a call's answer, whose errors come later, the name that the client knows its field by.
func (p Paths) RenameGrammar(c *call.Call) {
	if g := c.Requests[0].Grammar; g != nil {
		g.Param = p.name(g.Param)
	}
}

func (p Paths) name(param string) string {
	for at := len(param); at > 0; at = strings.LastIndexAny(param[:at], ".[") {
		if name, ok := p[param[:at]]; ok {
			return name + param[at:]
		}
	}
	return param
}
