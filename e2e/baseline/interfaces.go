package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// openAPI is the description of the HTTP interface, without its prose and version.
func openAPI(ctx context.Context, s *subject) (facts, error) {
	body, err := s.server.get(ctx, "/openapi.json")
	if err != nil {
		return nil, err
	}
	return flat(body, func(name string, value any) bool {
		_, text := value.(string) // "description" may name a field, too
		return text && (name == "description" || name == "summary" || name == "version")
	})
}

// natsInfo is the description of the NATS service, without what differs from process to process.
func natsInfo(ctx context.Context, s *subject) (facts, error) {
	body, err := s.server.request(ctx, "$SRV.INFO.millrace")
	if err != nil {
		return nil, err
	}
	body = ownSubject.ReplaceAll(body, []byte("${1}GATEWAY"))
	f, err := flat(body, func(name string, value any) bool {
		_, text := value.(string)
		return text && (name == "description" || name == "id" || name == "version")
	})
	return f.byName(), err
}

// endpoint is the path of what is known of an endpoint, by its position.
var endpoint = regexp.MustCompile(`^/endpoints/(\d+)/(.*)$`)

// byName names the endpoints of the NATS service by their names: their order means nothing.
func (f facts) byName() facts {
	named := facts{}
	for key, value := range f {
		if at := endpoint.FindStringSubmatch(key); at != nil {
			key = "/endpoints/" + strings.Trim(f["/endpoints/"+at[1]+"/name"], `"`) + "/" + at[2]
		}
		named[key] = value
	}
	return named
}

// ownSubject is the subjects of one gateway, which hold its id.
var ownSubject = regexp.MustCompile(`(millrace\.v1\.at\.)\w+`)

// flat lists the leaves of a JSON document by their path. Those that skip returns true for are left out.
func flat(document []byte, skip func(name string, value any) bool) (facts, error) {
	var root any
	if err := json.Unmarshal(document, &root); err != nil {
		return nil, err
	}
	f := facts{}
	return f, f.add("", "", root, skip)
}

func (f facts) add(path, name string, value any, skip func(string, any) bool) error {
	if skip(name, value) {
		return nil
	}
	switch v := value.(type) {
	case map[string]any:
		if len(v) == 0 {
			f[path] = "{}"
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			step := strings.NewReplacer("~", "~0", "/", "~1").Replace(key) // RFC 6901
			if err := f.add(path+"/"+step, key, v[key], skip); err != nil {
				return err
			}
		}
		return nil
	case []any:
		if scalars(v) { // a list of names: what is added to it is one difference, not all that follows
			break
		}
		for i, item := range v {
			if err := f.add(fmt.Sprintf("%s/%d", path, i), "", item, skip); err != nil {
				return err
			}
		}
		return nil
	}
	text, err := json.Marshal(value)
	f[path] = string(text)
	return err
}

func scalars(list []any) bool {
	return !slices.ContainsFunc(list, func(item any) bool {
		switch item.(type) {
		case map[string]any, []any:
			return true
		}
		return false
	})
}

// metrics is the names of the series, with their types and labels. Those of the Go runtime are not ours.
func metrics(ctx context.Context, s *subject) (facts, error) {
	body, err := s.server.get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	f := facts{}
	for name, family := range families {
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") || strings.HasPrefix(name, "promhttp_") {
			continue
		}
		f[name] = strings.TrimSpace(strings.ToLower(family.GetType().String()) + " " + strings.Join(labels(family), " "))
	}
	return f, nil
}

func labels(family *dto.MetricFamily) []string {
	names := map[string]bool{}
	for _, series := range family.Metric {
		for _, label := range series.Label {
			names[label.GetName()] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}
