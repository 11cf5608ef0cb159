package httpapi

import (
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/llamacpp"
	"github.com/millrace/millrace/api/lmstudio"
	"github.com/millrace/millrace/api/openai"
)

func (s *server) models(w http.ResponseWriter, r *http.Request) error {
	body, err := openai.EncodeModels(s.visible(r))
	if err != nil {
		return err
	}
	return writeJSON(w, body)
}

func (s *server) oneModel(w http.ResponseWriter, r *http.Request) error {
	body, err := openai.EncodeModel(r.PathValue("id"), s.visible(r))
	if err != nil {
		return err
	}
	return writeJSON(w, body)
}

// modelsLMStudio serves the list of models in a form of LM Studio's.
func (s *server) modelsLMStudio(encode func([]api.Model) ([]byte, error)) handlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		body, err := encode(s.visible(r))
		if err != nil {
			return err
		}
		return writeJSON(w, body)
	}
}

func (s *server) oneModelLMStudio(w http.ResponseWriter, r *http.Request) error {
	m, err := openai.Find(r.PathValue("id"), s.visible(r))
	if err != nil {
		return err
	}
	body, err := lmstudio.EncodeModel(m)
	if err != nil {
		return err
	}
	return writeJSON(w, body)
}

// unary serves a path with one answer and no stream.
func (s *server) unary(run call.Unary) handlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		body, err := s.body(w, r)
		if err != nil {
			return err
		}
		leave, err := s.bodies.enter(r.Context(), len(body))
		if err != nil {
			return err
		}
		defer leave()
		answer, err := run(r.Context(), s.engine, body)
		if err != nil {
			return err
		}
		return writeJSON(w, answer)
	}
}

// withoutSlashes returns a request without the slashes that clients add when they join URLs: repeated ones, and one at the end. A redirect
// would turn a POST into a GET.
func withoutSlashes(r *http.Request) *http.Request {
	path := r.URL.Path
	if !strings.Contains(path, "//") && (len(path) < 2 || !strings.HasSuffix(path, "/") || strings.HasPrefix(path, "/web/")) {
		return r
	}
	clean := func(path string) string {
		path = repeatedSlashes.ReplaceAllString(path, "/")
		if len(path) > 1 && !strings.HasPrefix(path, "/web/") { // folders of files end in one
			path = strings.TrimSuffix(path, "/")
		}
		return path
	}
	url := *r.URL
	url.Path, url.RawPath = clean(url.Path), clean(url.RawPath)
	cleaned := *r
	cleaned.URL = &url
	return &cleaned
}

// repeatedSlashes is two or more slashes.
var repeatedSlashes = regexp.MustCompile("//+")

// health answers as vLLM and llama.cpp do: 200 while the server can take requests.
func (s *server) health(w http.ResponseWriter, _ *http.Request) error {
	if err := s.notReady(); err != nil {
		return err
	}
	return writeJSON(w, []byte(`{"status":"ok"}`))
}

// version answers as vLLM does.
func (s *server) version(w http.ResponseWriter, _ *http.Request) error {
	body, err := openai.EncodeVersion(s.opts.Version)
	if err != nil {
		return err
	}
	return writeJSON(w, body)
}

// props answers as llama.cpp does. The query may name a model; the first one is the default.
func (s *server) props(w http.ResponseWriter, r *http.Request) error {
	if err := s.notReady(); err != nil {
		return err
	}
	body, err := llamacpp.EncodeProps(s.visible(r), r.URL.Query().Get("model"), s.opts.Version)
	if err != nil {
		return err
	}
	return writeJSON(w, body)
}

// slots answers as llama.cpp does, while the server takes requests.
func (s *server) slots(w http.ResponseWriter, r *http.Request) error {
	if err := s.notReady(); err != nil {
		return err
	}
	body, err := llamacpp.EncodeSlots(s.visible(r))
	if err != nil {
		return err
	}
	return writeJSON(w, body)
}

func (s *server) live(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, []byte(`{"status":"live"}`))
}

// ready answers 503 with the reason while the engine loads, drains or makes no progress.
func (s *server) ready(w http.ResponseWriter, _ *http.Request) error {
	if err := s.notReady(); err != nil {
		return err
	}
	return writeJSON(w, []byte(`{"status":"ready"}`))
}

// notReady returns why the engine takes no requests, nil if it takes them.
func (s *server) notReady() error {
	if err := s.engine.Ready(); err != nil {
		return &api.Error{Code: api.CodeUnavailable, Reason: "not_ready",
			Message: "not ready: " + err.Error(), RetryAfter: time.Second}
	}
	return nil
}
