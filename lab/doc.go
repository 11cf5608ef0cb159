// Package lab holds research: the work of the commands bench, eval, explain and simulate. Its
// folders measure, bound and simulate what serves. Nothing that serves imports them.
//
// It must not know the flags of the commands, which are in cmd/millrace, nor the actors.
package lab
