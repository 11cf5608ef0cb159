package openai

import (
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/jsonbody"
)

// resumable reads "stream_resume" and, where it is not false, "request_id".
func (o *object) resumable(c *call.Call) (requestID string) {
	raw, ok := o.get("stream_resume")
	switch {
	case !ok:
		return ""
	case string(raw) == "false":
		c.Resume = call.ResumeNo
		return ""
	case string(raw) == "true":
		c.Resume = call.ResumeYes
	case string(raw) == `"auto"`:
		c.Resume = call.ResumeAuto
	default:
		o.expected("stream_resume", `true, false or "auto"`, raw)
	}
	o.str("request_id", &requestID)
	if requestID != "" && (len(requestID) > call.MaxRequestID || !call.ValidID(requestID)) {
		o.fail("request_id", "expected 1 to %d letters, digits, '-' or '_', found %q", call.MaxRequestID,
			jsonbody.Snippet([]byte(requestID)))
	}
	return requestID
}
