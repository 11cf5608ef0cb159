package jinja

/*
#if __has_include("archive_id.h")
#include "archive_id.h"
#endif
#ifndef MILLRACE_TEXT_ID
#define MILLRACE_TEXT_ID ""
#endif
*/
import "C"

// LibraryID names the sources of the archive with the tokenizers library and this package's
// template engine: the library's version and a hash of the crate and its locked dependencies.
// It is "" of an archive that another build than scripts/build made.
const LibraryID = C.MILLRACE_TEXT_ID
