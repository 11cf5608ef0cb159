//go:build packaged

package models

import "embed"

// demo is empty: packages have the model in share/millrace, and a program that is 15 MB smaller.
var demo embed.FS
