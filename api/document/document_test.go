package document

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/openai"
)

// A field of the document that the decoder does not know would be ignored by
// it, and a bound that differs would be a wrong promise: so each documented
// field is sent with a wrong type and with its bounds.
func TestTheDocumentsFieldsAndBoundsAreTheDecoders(t *testing.T) {
	served := []api.Model{{ID: "tiny-chat"}}
	for _, c := range []struct {
		request reflect.Type
		decode  func([]byte, []api.Model, time.Time) (*call.Call, error)
		base    map[string]string
	}{
		{reflect.TypeFor[chatRequest](), openai.DecodeChat, map[string]string{
			"messages": `[{"role":"assistant","content":"x"}]`, "stream": "true", "logprobs": "true"}},
		{reflect.TypeFor[completionRequest](), openai.DecodeCompletion, map[string]string{"prompt": `"x"`, "stream": "true"}},
	} {
		try := func(name, value string) error {
			fields := []string{fmt.Sprintf("%q:%s", name, value)}
			for base, v := range c.base {
				if base != name && (base != "stream" || name != "prompt_logprobs") { // not in a stream
					fields = append(fields, fmt.Sprintf("%q:%s", base, v))
				}
			}
			switch name { // only with a beam search
			case "length_penalty", "early_stopping":
				fields = append(fields, `"use_beam_search":true,"num_beams":3`)
			case "request_id":
				fields = append(fields, `"stream_resume":true`)
			case "num_beams":
				fields = append(fields, `"use_beam_search":true`)
			}
			_, err := c.decode([]byte("{"+strings.Join(fields, ",")+"}"), served, time.Unix(0, 0))
			return err
		}
		schemas := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
		schemas.Schema(c.request, true, "")
		properties := schemas.Map()[huma.DefaultSchemaNamer(c.request, "")].Properties
		require.Greater(t, len(properties), 30)
		for name, s := range properties {
			wrong := `{"wrong":[1]}`
			if s.Type == "object" || s.Ref != "" || name == "guided_json" {
				wrong = "[1]"
			}
			if !errors.As(try(name, wrong), new(*api.Error)) {
				t.Errorf("%s: the decoder takes %s", name, wrong)
			}
			bounds(t, name, s, try)
		}
	}
}

func TestTheDocumentAllowsNullForOptionalFieldsOnly(t *testing.T) {
	body, err := OpenAPI("", false)
	require.NoError(t, err)
	for _, c := range []struct{ schema, field, want string }{
		{"ChatRequest", "temperature", `"type":["number","null"]`},
		{"ChatRequest", "reasoning_effort", `"high","xhigh",null]`},
		{"ChatRequest", "stream_options", `"anyOf":[{"$ref":"#/components/schemas/StreamOptions"},{"type":"null"}]`},
		{"ChatRequest", "stop", `"oneOf":[{"type":"string"},{"items":{"type":"string"},"type":["array","null"]}]`},
		{"ChatRequest", "stream_resume", `{"enum":["auto"],"type":"string"},{"type":"null"}]`},
		{"OllamaMessage", "role", `"type":"string"}`},
		{"MessagesRequest", "max_tokens", `"type":"integer"`},
		{"Response", "model", `"type":"string"}`},
	} {
		var doc struct {
			Components struct {
				Schemas map[string]struct{ Properties map[string]json.RawMessage }
			}
		}
		require.NoError(t, json.Unmarshal(body, &doc))
		require.Contains(t, string(doc.Components.Schemas[c.schema].Properties[c.field]), c.want, c.field)
	}
}

// TestNoSchemaIsNamedAfterAField: a generator of clients makes types of the names.
func TestNoSchemaIsNamedAfterAField(t *testing.T) {
	body, err := OpenAPI("", false)
	require.NoError(t, err)
	var doc struct {
		Components struct {
			Schemas map[string]json.RawMessage
		}
	}
	require.NoError(t, json.Unmarshal(body, &doc))
	require.Contains(t, doc.Components.Schemas, "ThinkingDetails")
	for name := range doc.Components.Schemas {
		require.False(t, strings.HasSuffix(name, "Struct"), "%s: its type has no name", name)
	}
}

func bounds(t *testing.T, name string, s *huma.Schema, try func(name, value string) error) {
	inside := func(v float64) {
		if name == "best_of" && v != 1 {
			return // only equal to n
		}
		if err := try(name, fmt.Sprint(int64(v))); err != nil {
			t.Errorf("%s: the document allows %g: %v", name, v, err)
		}
	}
	outside := func(v float64) {
		if try(name, fmt.Sprint(v)) == nil {
			t.Errorf("%s: the document does not allow %g", name, v)
		}
	}
	if s.Minimum != nil && (name != "seed" && name != "priority") {
		inside(*s.Minimum)
		outside(*s.Minimum - 1)
	}
	if s.ExclusiveMinimum != nil {
		outside(*s.ExclusiveMinimum)
	}
	if s.Maximum != nil {
		inside(*s.Maximum)
		outside(*s.Maximum + 1)
	}
	if s.Default != nil && s.Type != "string" && s.Type != "boolean" {
		if err := try(name, fmt.Sprint(s.Default)); err != nil {
			t.Errorf("%s: the documented default: %v", name, err)
		}
	}
}
