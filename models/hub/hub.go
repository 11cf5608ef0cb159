// Package hub downloads models by the protocol of the Hugging Face Hub, and keeps them in a folder where the other commands find them
// by name. It must not know how a model is loaded or served.
package hub

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// DefaultEndpoint is the address of the public hub.
const DefaultEndpoint = "https://huggingface.co"

// Hub is a server of models.
type Hub struct {
	Endpoint string       // "": DefaultEndpoint
	Token    string       // of an account; "": public models only
	Client   *http.Client // nil: http.DefaultClient
}

// Name names a model: a repository of the hub and, for GGUF files, which of its files. Its text is owner/name or owner/name:variant.
type Name struct{ Owner, Repo, Variant string }

var nameForm = regexp.MustCompile(`^([A-Za-z0-9][\w.-]*)/([A-Za-z0-9][\w.-]*)(?::([A-Za-z0-9][\w.-]*))?$`)

// ParseName reads the name of a model.
func ParseName(text string) (Name, error) {
	m := nameForm.FindStringSubmatch(text)
	if m == nil {
		return Name{}, fmt.Errorf("found name %q, expected OWNER/NAME, or OWNER/NAME:VARIANT for a GGUF file", text)
	}
	return Name{m[1], m[2], m[3]}, nil
}

// String returns the text of a name.
func (n Name) String() string {
	if n.Variant == "" {
		return n.Repository()
	}
	return n.Repository() + ":" + n.Variant
}

// Repository returns owner/name.
func (n Name) Repository() string { return n.Owner + "/" + n.Repo }

// File is a file of a repository.
type File struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`             // bytes
	SHA256 string `json:"sha256,omitempty"` // of the content, for large files; else ""
	BlobID string `json:"blob,omitempty"`   // SHA-1 of git's object of the content, for small files; else ""
}

// Snapshot is a commit of a repository.
type Snapshot struct {
	Commit string
	Files  []File
}

// Snapshot returns the commit that a revision (a branch, a tag or a commit) names. "" is the main branch.
func (h *Hub) Snapshot(ctx context.Context, n Name, revision string) (*Snapshot, error) {
	resp, err := h.get(ctx, "/api/models/"+n.Repository()+"/revision/"+url.PathEscape(cmp.Or(revision, "main"))+"?blobs=true", 0)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	if err := statusError(resp, n); err != nil {
		return nil, err
	}
	const most = 16 << 20
	var body struct {
		SHA      string `json:"sha"`
		Siblings []struct {
			Name string `json:"rfilename"`
			Size int64  `json:"size"`
			Blob string `json:"blobId"`
			LFS  *struct {
				SHA256 string `json:"sha256"`
				Size   int64  `json:"size"`
			} `json:"lfs"`
		} `json:"siblings"`
	}
	err = json.NewDecoder(io.LimitReader(resp.Body, most)).Decode(&body)
	if err == nil && body.SHA == "" {
		err = errors.New("found no commit")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: the answer of %s is not a hub's: %w", n, h.endpoint(), err)
	}
	s := &Snapshot{Commit: body.SHA}
	for _, f := range body.Siblings {
		file := File{Name: f.Name, Size: f.Size, BlobID: f.Blob}
		if f.LFS != nil {
			file = File{Name: f.Name, Size: f.LFS.Size, SHA256: f.LFS.SHA256}
		}
		s.Files = append(s.Files, file)
	}
	return s, nil
}

func (h *Hub) endpoint() string { return strings.TrimSuffix(cmp.Or(h.Endpoint, DefaultEndpoint), "/") }

// get requests a path of the hub. from is the first byte of its content.
func (h *Hub) get(ctx context.Context, at string, from int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.endpoint()+at, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "millrace")
	req.Header.Set("Accept-Encoding", "identity") // a range is one of the content, and progress counts it
	if h.Token != "" {
		req.Header.Set("Authorization", "Bearer "+h.Token) // the client drops it where a redirect leads to another host
	}
	if from > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", from))
	}
	resp, err := cmp.Or(h.Client, http.DefaultClient).Do(req)
	if err != nil && ctx.Err() == nil {
		return nil, &unreachable{h.endpoint(), err}
	}
	return resp, err
}

// unreachable is the error of a request without an answer.
type unreachable struct {
	endpoint string
	err      error
}

// Error implements error.
func (u *unreachable) Error() string {
	cause := u.err
	if wrapped, ok := errors.AsType[*url.Error](cause); ok {
		cause = wrapped.Err // without the whole address
	}
	return fmt.Sprintf("found no answer of %s (%v), expected the hub or a mirror: HF_ENDPOINT names another one, HF_HUB_OFFLINE=1 uses downloaded models only", u.endpoint, cause)
}

// Unwrap returns the cause.
func (u *unreachable) Unwrap() error { return u.err }

// open requests the content of a file from a byte on.
func (h *Hub) open(ctx context.Context, n Name, commit, file string, from int64) (*http.Response, error) {
	return h.get(ctx, "/"+n.Repository()+"/resolve/"+url.PathEscape(commit)+"/"+(&url.URL{Path: file}).EscapedPath(), from)
}

// errRefused marks an answer that another try does not change.
var errRefused = errors.New("refused")

// statusError returns the error of an answer that has no content.
func statusError(resp *http.Response, n Name) error {
	switch resp.StatusCode {
	case http.StatusOK, http.StatusPartialContent:
		return nil
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%s: %w: %s: the model does not exist, or needs an account that may read it: set HF_TOKEN, and accept the model's terms on its page", n, errRefused, resp.Status)
	case http.StatusNotFound:
		return fmt.Errorf("%s: %w: found no such model, revision or file at %s", n, errRefused, resp.Request.URL.Host)
	case http.StatusTooManyRequests:
		return fmt.Errorf("%s: %s: the hub limits the rate of requests", n, resp.Status)
	}
	if resp.StatusCode < http.StatusInternalServerError {
		return fmt.Errorf("%s: %w: %s", n, errRefused, resp.Status)
	}
	return fmt.Errorf("%s: %s", n, resp.Status)
}

// inFolders are the names of files in folders that a model needs: the configurations and weights of sentence-transformers' modules, and
// named chat templates.
var inFolders = regexp.MustCompile(`^(?:\d+_[A-Za-z]+/(?:config\.json|model\.safetensors|pytorch_model\.bin)|additional_chat_templates/[\w-]+\.jinja)$`)

// Wanted returns the files that a model needs, with config.json first. With a variant it is the GGUF files whose names contain it.
// Without one it is the configuration, the tokenizer and the weights: as safetensors, or else as pytorch_model.bin or its shards.
func Wanted(files []File, variant string) ([]File, error) {
	var weights, pickled, others, ggufs []File
	for _, f := range files {
		name := strings.ToLower(f.Name)
		switch {
		case inFolders.MatchString(f.Name):
			others = append(others, f)
		case strings.HasSuffix(name, ".gguf") && !strings.HasPrefix(path.Base(name), "mmproj"): // which is for images
			ggufs = append(ggufs, f)
		case strings.Contains(f.Name, "/"), f.Name == "" || strings.HasPrefix(f.Name, "."): // of other programs
		case strings.HasSuffix(name, ".safetensors"):
			weights = append(weights, f)
		case pickledName.MatchString(f.Name):
			pickled = append(pickled, f)
		case slices.Contains([]string{".json", ".model", ".jinja", ".txt"}, path.Ext(name)) && name != "readme.txt":
			others = append(others, f)
		}
	}
	has := func(list []File, name string) bool {
		return slices.ContainsFunc(list, func(f File) bool { return f.Name == name })
	}
	if len(weights) == 0 {
		weights = pickled
	}
	others = slices.DeleteFunc(others, func(f File) bool { // a module's weights are read once
		folder, name := path.Split(f.Name)
		return name == "pytorch_model.bin" && has(others, folder+"model.safetensors")
	})
	switch {
	case variant != "":
		return chooseGGUF(ggufs, variant)
	case len(weights) == 0 && len(ggufs) > 0:
		return nil, fmt.Errorf("found GGUF files only, expected a variant after the name, such as :%s (%s)", quantization(ggufs[0].Name),
			names(ggufs))
	case len(weights) == 0 || !has(others, configFile):
		return nil, errors.New("found no config.json with weights as .safetensors or pytorch_model.bin, expected both, or GGUF files")
	}
	// Checkpoints that have a second, consolidated copy of their weights.
	if has(others, "model.safetensors.index.json") || has(weights, "model.safetensors") {
		weights = slices.DeleteFunc(weights, func(f File) bool { return !strings.HasPrefix(f.Name, "model") })
	}
	slices.SortStableFunc(others, func(a, b File) int { return cmp.Compare(rank(a), rank(b)) })
	return append(others, weights...), nil
}

// pickledName matches weights of torch.save as transformers names them. Other .bin files are an optimizer's, or of other programs.
var pickledName = regexp.MustCompile(`^pytorch_model(-\d{5}-of-\d{5})?\.bin$`)

// rank puts config.json before the other files.
func rank(f File) int {
	if f.Name == configFile {
		return 0
	}
	return 1
}

// part is the end of the name of one of a model's GGUF files.
var part = regexp.MustCompile(`-\d{5}-of-(\d{5})$`)

// chooseGGUF returns the file of a variant, or all files of a model in parts, the first one first.
func chooseGGUF(ggufs []File, variant string) ([]File, error) {
	models := map[string][]File{} // by name, without the part
	for _, f := range ggufs {
		whole := strings.TrimSuffix(f.Name, ".gguf")
		base := path.Base(part.ReplaceAllString(whole, ""))
		if endsWith(base, variant) {
			models[base] = append(models[base], f)
		}
	}
	if len(models) == 0 {
		return nil, fmt.Errorf("found no GGUF file of variant %q, expected one of %s", variant, names(ggufs))
	}
	found := slices.SortedFunc(maps.Keys(models), func(a, b string) int { // Q4_K_M before UD-Q4_K_M
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	})
	if len(found) > 1 && len(found[0]) == len(found[1]) {
		return nil,
			fmt.Errorf("found %d GGUF files of variant %q (%s), expected one: a longer part of its name, or all of it, is a variant too",
				len(found), variant, strings.Join(found, ", "))
	}
	files := models[found[0]]
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.Name, b.Name) })
	expected := 1
	if m := part.FindStringSubmatch(strings.TrimSuffix(files[0].Name, ".gguf")); m != nil {
		expected, _ = strconv.Atoi(m[1]) // of five digits
	}
	if len(files) != expected {
		return nil, fmt.Errorf("found %d GGUF files of variant %q (%s), expected %d", len(files), variant, names(files), expected)
	}
	return files, nil
}

// endsWith says whether a name is a variant, or ends with it after '-' or '.', in upper or lower case.
func endsWith(name, variant string) bool {
	begin := len(name) - len(variant)
	return begin >= 0 && strings.EqualFold(name[begin:], variant) && (begin == 0 || strings.ContainsAny(name[begin-1:begin], "-."))
}

// quantization returns the part of a GGUF file's name after its last '-' or '.', such as Q8_0.
func quantization(name string) string {
	name = part.ReplaceAllString(strings.TrimSuffix(name, ".gguf"), "")
	return name[strings.LastIndexAny(name, "-.")+1:]
}

func names(files []File) string {
	var list []string
	for _, f := range files {
		list = append(list, f.Name)
	}
	return strings.Join(list, ", ")
}
