package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"time"

	"github.com/millrace/millrace/api/batches"
	"github.com/millrace/millrace/e2e/wait"
)

// batchClient calls the interface of files and batches. It sends a request to one gateway after the other until one answers it.
type batchClient struct {
	gateways func() []string
	key      string
	http     http.Client
	tried    int
}

const (
	// requestPatience bounds one request to one gateway.
	requestPatience = 20 * time.Second
	retryPause      = 200 * time.Millisecond
)

// refused is an answer with another status than 200.
type refused struct {
	status int
	body   []byte
}

func (r *refused) Error() string { return fmt.Sprintf("found status %d: %.300s", r.status, r.body) }

// once sends a request to the next gateway.
func (c *batchClient) once(ctx context.Context, method, path, kind string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	gateways := c.gateways()
	c.tried++
	r, err := http.NewRequestWithContext(ctx, method, gateways[c.tried%len(gateways)]+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+c.key)
	r.Header.Set("Content-Type", kind)
	answer, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = &refused{answer.StatusCode, text}
	}
	return text, err
}

// do sends a request until a gateway answers with other than 429 and 5xx, for startPatience.
func (c *batchClient) do(ctx context.Context, method, path, kind string, body []byte) ([]byte, error) {
	late := time.Now().Add(startPatience)
	for {
		text, err := c.once(ctx, method, path, kind, body)
		var r *refused
		if err == nil || errors.As(err, &r) && r.status < http.StatusInternalServerError && r.status != http.StatusTooManyRequests {
			return text, err
		}
		if time.Now().After(late) {
			return nil, fmt.Errorf("%s %s for %s: %w", method, path, startPatience, err)
		}
		if err := wait.For(ctx, retryPause); err != nil {
			return nil, err
		}
	}
}

const kindJSON = "application/json"

// uploadForm returns the form that stores a file, and its content type.
func uploadForm(file []byte) (body []byte, kind string) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	_ = w.WriteField("purpose", "batch") // a buffer takes everything
	part, _ := w.CreateFormFile("file", "requests.jsonl")
	_, _ = part.Write(file)
	_ = w.Close()
	return b.Bytes(), w.FormDataContentType()
}

// upload stores a file.
func (c *batchClient) upload(ctx context.Context, file []byte) (id string, err error) {
	body, kind := uploadForm(file)
	text, err := c.do(ctx, http.MethodPost, "/v1/files", kind, body)
	if err != nil {
		return "", err
	}
	var f batches.File
	return f.ID, parsed(text, &f, &f.ID)
}

// create begins a batch.
func (c *batchClient) create(ctx context.Context, file, endpoint string) (*batches.Batch, error) {
	q, err := json.Marshal(batches.NewBatch{InputFile: file, Endpoint: endpoint, Window: "24h"})
	if err != nil {
		return nil, err
	}
	return c.batch(ctx, http.MethodPost, "/v1/batches", q)
}

func (c *batchClient) get(ctx context.Context, id string) (*batches.Batch, error) {
	return c.batch(ctx, http.MethodGet, "/v1/batches/"+id, nil)
}

func (c *batchClient) cancel(ctx context.Context, id string) (*batches.Batch, error) {
	return c.batch(ctx, http.MethodPost, "/v1/batches/"+id+"/cancel", nil)
}

func (c *batchClient) batch(ctx context.Context, method, path string, body []byte) (*batches.Batch, error) {
	text, err := c.do(ctx, method, path, kindJSON, body)
	if err != nil {
		return nil, err
	}
	b := &batches.Batch{}
	return b, parsed(text, b, &b.ID)
}

// parsed decodes an answer, which must have an id.
func parsed(text []byte, to any, id *string) error {
	if err := json.Unmarshal(text, to); err != nil {
		return fmt.Errorf("%w: %.300s", err, text)
	}
	if *id == "" {
		return fmt.Errorf("found %.300s, expected an object with an id", text)
	}
	return nil
}

// content reads a file; nil has none.
func (c *batchClient) content(ctx context.Context, id *string) ([]byte, error) {
	if id == nil {
		return nil, nil
	}
	return c.do(ctx, http.MethodGet, "/v1/files/"+*id+"/content", kindJSON, nil)
}

// remove deletes files, so that the next batch has their room.
func (c *batchClient) remove(ctx context.Context, ids ...*string) error {
	for _, id := range ids {
		if id == nil {
			continue
		}
		if _, err := c.do(ctx, http.MethodDelete, "/v1/files/"+*id, kindJSON, nil); err != nil {
			return err
		}
	}
	return nil
}
