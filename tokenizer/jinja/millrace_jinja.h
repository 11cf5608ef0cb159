/* Chat templates: the C ABI of the crate in src/. No function unwinds or aborts for bad input. */
#ifndef MILLRACE_JINJA_H
#define MILLRACE_JINJA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes owned by the library until millrace_jinja_bytes_free; UTF-8, no terminator. */
typedef struct {
  uint8_t* data;
  size_t len;
} millrace_jinja_bytes;

enum {
  MILLRACE_JINJA_OK = 0,
  MILLRACE_JINJA_ERROR = 1,  /* the template is wrong, or does not fit the input */
  MILLRACE_JINJA_RAISED = 2, /* the template called raise_exception; out is its message */
  MILLRACE_JINJA_LIMIT = 3,  /* more work or output than a render may take */
};

/* Compiles a template. OK: *out_template is set; else out is the message. */
int32_t millrace_jinja_compile(const uint8_t* source, size_t len, void** out_template,
                               millrace_jinja_bytes* out);

/* Bounds of one render. */
typedef struct {
  uint64_t steps;   /* instructions of the template engine */
  size_t output;    /* bytes written */
  size_t memory;    /* bytes held at once, the variables' own not counted */
  size_t allocated; /* bytes allocated in all, freed ones counted; 256 more for each allocation */
} millrace_jinja_limits;

/* Renders with the variables of a JSON object. now_seconds is the time that strftime_now formats,
 * in seconds since 1970 UTC. With MILLRACE_JINJA_LIMIT out says which limit. Safe from many threads
 * at once. */
int32_t millrace_jinja_render(const void* template_, const uint8_t* context, size_t len,
                              int64_t now_seconds, const millrace_jinja_limits* limits,
                              millrace_jinja_bytes* out);

void millrace_jinja_template_free(void* template_);
void millrace_jinja_bytes_free(millrace_jinja_bytes bytes);

#ifdef __cplusplus
}
#endif

#endif
