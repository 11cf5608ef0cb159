package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/compute/sample"
)

// chatSetting is a setting of a conversation.
type chatSetting struct {
	name  string
	whole bool // an integer
	get   func(r *client.ChatRequest) (value string, set bool)
	set   func(r *client.ChatRequest, value *float64) // nil: the server's
}

func chatSettings() []chatSetting {
	pointer := func(name string, at func(*client.ChatRequest) **float64) chatSetting {
		get := func(r *client.ChatRequest) (string, bool) { return shown(*at(r)) }
		return chatSetting{name, false, get, func(r *client.ChatRequest, v *float64) { *at(r) = v }}
	}
	plain := func(name string, at func(*client.ChatRequest) *int) chatSetting {
		get := func(r *client.ChatRequest) (string, bool) { return fmt.Sprint(*at(r)), *at(r) != 0 }
		return chatSetting{name, true, get, func(r *client.ChatRequest, v *float64) { *at(r) = int(orZero(v)) }}
	}
	minP := func(r *client.ChatRequest) (string, bool) { return fmt.Sprint(r.MinP), r.MinP != 0 }
	seed := func(r *client.ChatRequest) (string, bool) { return shown(r.Seed) }
	return []chatSetting{
		pointer("temperature", func(r *client.ChatRequest) **float64 { return &r.Temperature }),
		pointer("top_p", func(r *client.ChatRequest) **float64 { return &r.TopP }),
		plain("top_k", func(r *client.ChatRequest) *int { return &r.TopK }),
		{"min_p", false, minP, func(r *client.ChatRequest, v *float64) { r.MinP = orZero(v) }},
		plain("max_tokens", func(r *client.ChatRequest) *int { return &r.MaxCompletionTokens }),
		{"seed", true, seed, func(r *client.ChatRequest, v *float64) {
			r.Seed = nil
			if v != nil {
				whole := int64(*v)
				r.Seed = &whole
			}
		}},
	}
}

func orZero(v *float64) float64 {
	if v == nil {
		return 0
	}
	return *v
}

// shown is the text of a setting, if it has a value.
func shown[T any](v *T) (string, bool) {
	if v == nil {
		return "", false
	}
	return fmt.Sprint(*v), true
}

// set sets a parameter of sampling, unsets one without a value, or shows all without a name.
func (v *conversation) set(ctx context.Context, text string) error {
	if text == "" {
		v.showSettings(ctx)
		return nil
	}
	name, value, _ := strings.Cut(text, " ")
	var names []string
	for _, s := range chatSettings() {
		names = append(names, s.name)
		if s.name != name {
			continue
		}
		changed := v.r
		if err := s.parse(&changed, strings.TrimSpace(value)); err != nil {
			return err
		}
		v.r = changed
		if value == "" {
			v.say("%s is the server's", name)
		} else {
			v.say("%s is %s", name, strings.TrimSpace(value))
		}
		return nil
	}
	return fmt.Errorf("found %q, expected %s", name, strings.Join(names, ", "))
}

// parse sets the parameter of a request; without a text it is unset.
func (s *chatSetting) parse(r *client.ChatRequest, text string) error {
	if text == "" {
		s.set(r, nil)
		return nil
	}
	expected := "a number"
	number, err := strconv.ParseFloat(text, 64)
	if s.whole {
		expected = "an integer"
		var whole int64
		whole, err = strconv.ParseInt(text, 10, 53)
		number = float64(whole)
	}
	if err != nil {
		return fmt.Errorf("found %s %q, expected %s", s.name, text, expected)
	}
	if s.name == "max_tokens" && number < 1 {
		return fmt.Errorf("found max_tokens %s, expected at least 1", text)
	}
	s.set(r, &number)
	return checkSampling(r)
}

// checkSampling holds the parameters of a request against the server's ranges.
func checkSampling(r *client.ChatRequest) error {
	p := sample.Default()
	if r.Temperature != nil {
		p.Temperature = float32(*r.Temperature)
	}
	if r.TopP != nil {
		p.TopP = float32(*r.TopP)
	}
	p.TopK, p.MinP = r.TopK, float32(r.MinP)
	return p.Validate()
}

// showSettings shows all settings, and the server's value of those that are not set.
func (v *conversation) showSettings(ctx context.Context) {
	server := v.serverSettings(ctx)
	for _, s := range chatSettings() {
		value, set := s.get(&v.r)
		if set {
			v.say("%s %s", s.name, value)
			continue
		}
		if value, known := server[s.name]; known {
			v.say("%s %s (the server's)", s.name, value)
		} else {
			v.say("%s (the server's)", s.name)
		}
	}
}

// serverSettings returns the parameters that the server uses for the model; none of a server that does not say.
func (v *conversation) serverSettings(ctx context.Context) map[string]string {
	list, err := v.client.Models(ctx)
	i := slices.IndexFunc(list, func(m client.Model) bool { return v.r.Model == "" || m.ID == v.r.Model })
	if err != nil || i < 0 || list[i].Sampling.RepetitionPenalty == 0 {
		return nil
	}
	s := list[i].Sampling
	return map[string]string{
		"temperature": fmt.Sprint(s.Temperature), "top_p": fmt.Sprint(s.TopP), "top_k": fmt.Sprint(s.TopK), "min_p": fmt.Sprint(s.MinP),
	}
}
