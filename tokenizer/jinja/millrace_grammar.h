/* Grammars over a vocabulary: the C ABI of src/grammar.rs. No function unwinds or aborts for bad input.
 * Functions that return int32_t return the codes of millrace_jinja.h: OK, ERROR (the grammar is wrong, or not
 * supported) or LIMIT, and with the latter two out is the message. */
#ifndef MILLRACE_GRAMMAR_H
#define MILLRACE_GRAMMAR_H

#include "millrace_jinja.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bounds of one call. */
typedef struct {
  size_t memory;    /* bytes held at once */
  size_t allocated; /* bytes allocated in all, freed ones counted; 256 more for each allocation */
  uint64_t milliseconds; /* time; a call may exceed it by the work between two allocations */
} millrace_grammar_limits;

enum {
  MILLRACE_GRAMMAR_JSON_SCHEMA = 0,
  MILLRACE_GRAMMAR_REGEX = 1,
  MILLRACE_GRAMMAR_LARK = 2,
};

/* Makes a vocabulary of count tokens. The bytes of token i are data[offsets[i]] up to data[offsets[i + 1]]; a token
 * without bytes is never allowed. special[i] != 0: no text matches the token. ends are the end_count >= 1 tokens that
 * may end an answer. tokenizer is what tokenizers_from_bytes made, which is used until vocabulary_close, or NULL: forced
 * texts are spelled with the longest tokens then. */
int32_t millrace_grammar_vocabulary(const void* tokenizer, const uint8_t* data,
                                    const uint32_t* offsets, const uint8_t* special, size_t count,
                                    const uint32_t* ends, size_t end_count, void** out_vocabulary,
                                    millrace_jinja_bytes* out);

/* Takes the tokenizer from a vocabulary, whose grammars may be used on. Waits for calls that use it. */
void millrace_grammar_vocabulary_close(const void* vocabulary);
void millrace_grammar_vocabulary_free(void* vocabulary);

/* Compiles a grammar. Safe from many threads at once. */
int32_t millrace_grammar_compile(const void* vocabulary, uint32_t kind, const uint8_t* source,
                                 size_t len, const millrace_grammar_limits* limits,
                                 void** out_grammar, millrace_jinja_bytes* out);

/* The bytes that a grammar holds. They grow with the calls of its matchers. */
size_t millrace_grammar_size(const void* grammar);
void millrace_grammar_free(void* grammar); /* its matchers may be used on */

/* Makes a matcher. It is for one thread at a time; matchers of one grammar may be used from many at once. */
int32_t millrace_grammar_matcher(const void* grammar, void** out_matcher,
                                 millrace_jinja_bytes* out);
void millrace_grammar_matcher_free(void* matcher);

/* Writes a bit for each token into words words, the lowest bit of the first one for token 0: set where the token may come
 * next. After the end of the grammar these are the ends. */
int32_t millrace_grammar_mask(void* matcher, const millrace_grammar_limits* limits, uint32_t* bits,
                              size_t words, millrace_jinja_bytes* out);

/* Takes tokens up to the first that the grammar refuses, *out_taken in number. *out_ended is 1 where only an end may
 * follow. */
int32_t millrace_grammar_advance(void* matcher, const millrace_grammar_limits* limits,
                                 const uint32_t* tokens, size_t count, size_t* out_taken,
                                 int32_t* out_ended, millrace_jinja_bytes* out);

/* Writes the tokens that the mask would allow alone, one after the other, at most most of them. */
int32_t millrace_grammar_forced(void* matcher, const millrace_grammar_limits* limits,
                                uint32_t* tokens, size_t most, size_t* out_count,
                                millrace_jinja_bytes* out);

/* Takes back the last count tokens. */
int32_t millrace_grammar_rollback(void* matcher, const millrace_grammar_limits* limits,
                                  size_t count, millrace_jinja_bytes* out);

#ifdef __cplusplus
}
#endif

#endif
