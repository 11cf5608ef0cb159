// Package batches defines the JSON bodies of OpenAI's files and batches, and what a route is. It must not know how they are stored.
package batches

import "net/http"

// Route is a path, its methods, and what answers them: with an *api.Error before the first byte of an answer.
type Route struct {
	Path, Methods string
	Handle        func(http.ResponseWriter, *http.Request) error
}

// File describes a stored file.
type File struct {
	ID        string `json:"id"`
	Object    string `json:"object" doc:"Always \"file\""`
	Bytes     int64  `json:"bytes"`
	CreatedAt int64  `json:"created_at" doc:"Unix seconds"`
	ExpiresAt int64  `json:"expires_at" doc:"Unix seconds"`
	Filename  string `json:"filename"`
	Purpose   string `json:"purpose" doc:"batch, or batch_output of a file that a batch wrote"`
	Status    string `json:"status" doc:"Always \"processed\""`
}

// FileList is a page of files.
type FileList struct {
	Object  string  `json:"object" doc:"Always \"list\""`
	Data    []File  `json:"data"`
	FirstID *string `json:"first_id"`
	LastID  *string `json:"last_id"`
	HasMore bool    `json:"has_more"`
}

// Deleted is the answer of a deletion.
type Deleted struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Deleted bool   `json:"deleted"`
}

// Batch describes a batch.
type Batch struct {
	ID            string            `json:"id"`
	Object        string            `json:"object" doc:"Always \"batch\""`
	Endpoint      string            `json:"endpoint"`
	Errors        *BatchErrors      `json:"errors" doc:"Why a batch failed before its first line"`
	InputFile     string            `json:"input_file_id"`
	Window        string            `json:"completion_window"`
	Status        string            `json:"status" doc:"validating, failed, in_progress, finalizing, completed, expired, cancelling or cancelled"`
	OutputFile    *string           `json:"output_file_id"`
	ErrorFile     *string           `json:"error_file_id"`
	CreatedAt     int64             `json:"created_at" doc:"Unix seconds, as all times"`
	InProgressAt  *int64            `json:"in_progress_at"`
	ExpiresAt     int64             `json:"expires_at"`
	FinalizingAt  *int64            `json:"finalizing_at"`
	CompletedAt   *int64            `json:"completed_at"`
	FailedAt      *int64            `json:"failed_at"`
	ExpiredAt     *int64            `json:"expired_at"`
	CancellingAt  *int64            `json:"cancelling_at"`
	CancelledAt   *int64            `json:"cancelled_at"`
	RequestCounts BatchCounts       `json:"request_counts"`
	Metadata      map[string]string `json:"metadata"`
}

// BatchErrors are the errors of a file that failed.
type BatchErrors struct {
	Object string       `json:"object" doc:"Always \"list\""`
	Data   []BatchError `json:"data"`
}

// BatchError is an error of a line.
type BatchError struct {
	Code    string  `json:"code"`
	Message string  `json:"message"`
	Param   *string `json:"param"`
	Line    *int    `json:"line" doc:"From 1"`
}

// BatchCounts are numbers of lines.
type BatchCounts struct {
	Total     int `json:"total"`
	Completed int `json:"completed"`
	Failed    int `json:"failed"`
}

// BatchList is a page of batches.
type BatchList struct {
	Object  string  `json:"object" doc:"Always \"list\""`
	Data    []Batch `json:"data"`
	FirstID *string `json:"first_id"`
	LastID  *string `json:"last_id"`
	HasMore bool    `json:"has_more"`
}

// NewBatch is the request for a batch.
type NewBatch struct {
	_         struct{}          `json:"-" additionalProperties:"true"`
	InputFile string            `json:"input_file_id"`
	Endpoint  string            `json:"endpoint" doc:"The path that the lines call"`
	Window    string            `json:"completion_window" doc:"Hours, 1h to 168h; lines that have not run then get an error"`
	Metadata  map[string]string `json:"metadata,omitempty" maxItems:"16"`
}
