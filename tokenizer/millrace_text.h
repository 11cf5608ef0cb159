/* What tokenizers.h of github.com/daulet/tokenizers lacks: the reason of a failure, and texts with NULs. */
#ifndef MILLRACE_TEXT_H
#define MILLRACE_TEXT_H

#include <stdbool.h>

#include "jinja/millrace_jinja.h"

typedef struct {
  uint32_t* data;
  size_t len;
} millrace_text_ids;

/* Encodes len bytes of UTF-8, which may have NULs. Special tokens that cover one of the count ascending byte offsets
 * plain are text like any other; with count > 0, none are added. Returns 0, or -1 where millrace_text_error has the
 * reason. */
int32_t millrace_text_encode(const void* tokenizer, const uint8_t* text, size_t len,
                             bool add_special_tokens, const size_t* plain, size_t count,
                             millrace_text_ids* out);
void millrace_text_ids_free(millrace_text_ids ids);

/* Takes the message of the last tokenizers_* or millrace_text_* call that failed on this thread. Returns 0, and leaves
 * *out, where none did. */
int32_t millrace_text_error(millrace_jinja_bytes* out);

#endif
