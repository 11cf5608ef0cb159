package openai

import (
	"math"
	"time"

	"github.com/millrace/millrace/api"
)

// ErrorBody is an error in OpenAI's shape.
type ErrorBody struct {
	Error ErrorDetail `json:"error"`
}

// ErrorDetail describes an error for people and programs.
type ErrorDetail struct {
	Message string  `json:"message"`
	Type    string  `json:"type" doc:"invalid_request_error, authentication_error, rate_limit_error or server_error"`
	Param   *string `json:"param" doc:"The field at fault"`
	Code    *string `json:"code" doc:"A stable word, such as model_not_found"`
}

// EncodeError returns the body of an error.
func EncodeError(e *api.Error) []byte {
	kind, code := classify(e.Code)
	if e.Reason != "" {
		code = e.Reason
	}
	d := ErrorDetail{Message: e.Message, Type: kind}
	if e.Param != "" {
		d.Param = &e.Param
	}
	if code != "" {
		d.Code = &code
	}
	body, err := api.Marshal(ErrorBody{Error: d})
	if err != nil { // strings always marshal
		return []byte(`{"error":{"message":"internal error","type":"server_error","param":null,"code":null}}`)
	}
	return body
}

func classify(code api.Code) (kind, reason string) {
	switch code {
	case api.CodeInvalid:
		return "invalid_request_error", "invalid_value"
	case api.CodeUnauthorized:
		return "authentication_error", "invalid_api_key"
	case api.CodeNotFound:
		return "invalid_request_error", "not_found"
	case api.CodeTooLarge:
		return "invalid_request_error", "request_too_large"
	case api.CodeOverloaded:
		return "rate_limit_error", "rate_limit_exceeded"
	case api.CodeUnavailable:
		return "server_error", "unavailable"
	case api.CodeTimeout:
		return "server_error", "deadline_exceeded"
	case api.CodeInternal:
		return "server_error", "internal_error"
	}
	if code >= 400 && code < 500 { // only HTTP's own, such as 405
		return "invalid_request_error", ""
	}
	return "server_error", "internal_error"
}

// RetryAfter returns the seconds after which a client may send a refused request again, 0 if waiting
// does not help.
func RetryAfter(e *api.Error) int {
	if e.Code != api.CodeOverloaded && e.Code != api.CodeUnavailable {
		return 0
	}
	return int(max(1, math.Ceil(float64(e.RetryAfter)/float64(time.Second))))
}
