/* What tokenizers.h of github.com/daulet/tokenizers lacks: the reason of a failure. */
#ifndef MILLRACE_TEXT_H
#define MILLRACE_TEXT_H

#include "jinja/millrace_jinja.h"

/* Takes the message of the last tokenizers_* call that failed on this thread. Returns 0, and leaves
 * *out, where none did. */
int32_t millrace_text_error(millrace_jinja_bytes* out);

#endif
