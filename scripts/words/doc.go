// Package words is a test of how this repository is written: it finds overused words, British
// spelling and retired names in every tracked text file. The rules are in rules_test.go. Files
// that still break them are under a path of pending.txt, which only shrinks.
//
//	go test ./scripts/words                        # all paths that are not pending
//	go test ./scripts/words -path compute/sched    # one path, pending or not
//
// It must not know what any package does.
package words
