// Package lab holds research: the work of the commands bench, eval, explain, plan and simulate. Its
// folders measure, bound, plan and simulate what serves. Nothing that serves imports them.
//
// It must not know the flags of the commands, which are in cmd/millrace, nor the actors.
package lab
