package batchapi

import (
	"encoding/json"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/batches"
	"github.com/millrace/millrace/api/jsonbody"
	"github.com/millrace/millrace/durable/batch"
	"github.com/millrace/millrace/durable/objects"
)

func fileOf(o *objects.Object) batches.File {
	return batches.File{ID: o.ID, Object: "file", Bytes: o.Size, CreatedAt: o.Created.Unix(), ExpiresAt: o.Expires.Unix(),
		Filename: o.Fields[batch.FieldName], Purpose: o.Fields[batch.FieldPurpose], Status: "processed"}
}

func optional[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func batchOf(r *batch.Record) batches.Batch {
	at := func(s batch.Status) *int64 { return optional(r.Times[s]) }
	b := batches.Batch{
		ID: r.ID, Object: "batch", Endpoint: r.Endpoint, InputFile: r.Input, Window: r.Window, Status: string(r.Status),
		OutputFile: optional(r.Output), ErrorFile: optional(r.Errors), CreatedAt: r.Times[batch.Validating],
		InProgressAt: at(batch.InProgress), ExpiresAt: r.Deadline, FinalizingAt: at(batch.Finalizing), CompletedAt: at(batch.Completed),
		FailedAt: at(batch.Failed), ExpiredAt: at(batch.Expired),
		CancellingAt: at(batch.Cancelling), CancelledAt: at(batch.Cancelled), RequestCounts: batches.BatchCounts(r.Counts),
		Metadata: r.Metadata,
	}
	if len(r.Faults) > 0 {
		b.Errors = &batches.BatchErrors{Object: "list"}
		for _, f := range r.Faults {
			b.Errors.Data = append(b.Errors.Data, batches.BatchError{Code: f.Code, Message: f.Message, Param: optional(f.Param),
				Line: optional(f.Line)})
		}
	}
	return b
}

// decodeBatch decodes the request for a batch. An error is an *api.Error that names the field.
func decodeBatch(body []byte) (batch.Request, error) {
	var q batches.NewBatch
	if err := jsonbody.Unmarshal(body, &q); err != nil {
		return batch.Request{}, err
	}
	window, err := time.ParseDuration(q.Window)
	if err != nil {
		return batch.Request{}, api.Invalid("completion_window", "completion_window: found %.20q, expected hours such as \"24h\"", q.Window)
	}
	metadata, err := json.Marshal(q.Metadata)
	if err == nil {
		err = api.CheckMetadata("metadata", metadata)
	}
	if err != nil {
		return batch.Request{}, err
	}
	return batch.Request{Input: q.InputFile, Endpoint: q.Endpoint, Window: window, Metadata: q.Metadata}, nil
}
