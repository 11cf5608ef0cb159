package words

import (
	"regexp"
	"strings"
)

// rule finds one thing that is written otherwise here.
type rule struct {
	// has are lower-case texts of which every match of found has one: a quick check.
	has []string
	// found matches flattened text: each run of white space is one space.
	found *regexp.Regexp
	// write is what stands there instead.
	write string
	// except are phrases with a match of found that are fine, each with its reason.
	except map[string]string
	// in are the paths that the rule is for. None: all of them.
	in []string
	// code limits the rule to code without comments and strings.
	code bool
}

// words is a list of lower-case texts, separated by "|".
func words(list string) []string { return strings.Split(list, "|") }

// phrase compiles a pattern for prose. Case does not count.
func phrase(pattern string) *regexp.Regexp { return regexp.MustCompile(`(?i)` + pattern) }

// name is a rule for a retired name in code, alone or as a word of a longer one (camelCase or
// snake_case).
func name(word, write string, in ...string) rule {
	title := strings.ToUpper(word[:1]) + word[1:]
	return rule{
		has: []string{word}, write: write, in: in, code: true,
		found: regexp.MustCompile(`\b(?:` + word + `|\w*_` + word + `|\w*[a-z0-9]` + title + `|` + title + `)(?:s|es)?(?:\b|_\w*|[A-Z]\w*)`),
	}
}

// verbs are the forms that follow "has X" where X does something.
const verbs = `take|make|send|read|do|begin|keep|know|forget|give|put|say|tell|ask|wait|turn|go|come|become|compute|decode|render|retry|spill|poll|listen`

var rules = []rule{
	// Overused words.
	{has: words("behind"), found: phrase(`\bbehind\b`), write: "after, follows", except: map[string]string{
		`behind (a|an|the|one|another|your|its) ([\w-]+ )?(proxy|proxies|balancer|firewall)\b`: "a position in a network",
	}},
	{has: words("goes on|go on|going on|went on|gone on"), found: phrase(`\b(goes|go|going|went|gone) on\b`), write: "continues, resumes"},
	{has: words("in front of"), found: phrase(`\bin front of\b`), write: "before"},
	{has: words("so many|so few"), found: phrase(`\bso (many|few)\b`), write: "up to N, at most N"},
	{has: words("so long"), found: phrase(`\bso long\b`), write: "for N, as long as"},
	{has: words("has |have "),
		found: regexp.MustCompile(`\b(has|have) (it|them|him|(the|a|an|its|their|each|every|all|one|another) [\w'-]+( of [\w'-]+)?) (` + verbs + `)\b`), write: "makes X do Y; X does Y"},
	{has: words("for dead"), found: phrase(`\b(taken?|takes|took|taking) (\w+ ){0,3}for dead\b`), write: "is considered dead"},
	{has: words("what was|what were|what comes|what came"), found: phrase(`\bwhat (was|were|comes|came)\b`), write: "the noun itself",
		except: map[string]string{
			`what was (found|expected)\b`: "the order of an error's parts",
		}},
	{has: words("let in|lets in|letting in|let it in|let them in|lets it in|lets them in|lets everybody in|lets nobody in"),
		found: phrase(`\b(let|lets|letting) ((it|them|him|her|everybody|everyone|nobody|anybody|all) )?in\b`), write: "accepted, admitted"},
	{has: words("looks"), found: phrase(`\blooks\b`), write: "the operation: polls, reads, checks"},
	{has: words("tells|told"), found: phrase(`\b(tells|told)\b`), write: "the operation: notifies, reports"},
	{has: words("asks|asked"), found: phrase(`\b(asks|asked)\b`), write: "the operation: requests"},
	{has: words("hears|heard"), found: phrase(`\b(hears|heard)\b`), write: "the operation: receives", except: map[string]string{
		`it didn't mind, we've heard`: "a text of a fixture",
	}},
	{has: words("minds"), found: phrase(`\bminds\b`), write: "the operation: checks, depends on"},
	{has: words(" books"), found: phrase(`\b(slab|the|its|own|their|memory) books\b`), write: "the allocator"},
	{has: words("ledger"), found: phrase(`\bledgers?\b`), write: "the in-flight table"},
	{has: words("account"), found: phrase(`\baccounts?\b`), write: "the entry", in: []string{"compute", "kvmgr"}},
	{has: words("of "), found: regexp.MustCompile(`\bOf [a-z]`),
		write: "a sentence that begins with its subject: \"The scale of each row\"", except: map[string]string{
			`\bOf (is|are|returns)\b`: "the doc comment of a function named Of",
		}},
	{has: words("guess"), found: phrase(`\bguess(es|ed)?\b`), write: "draft tokens", except: map[string]string{
		`\b(cannot|can|could|to|not) (be )?guess(ed)?\b`: "secrets and numbers that nobody knows",
	}},
	{has: words("moved"),
		found: phrase(`\b(sequence|stream|request|text|prompt)s? (that|which) ((is|are|was|were|has|have|had) )?(been )?moved\b|\bmoved (sequence|stream|request|prompt)s?\b`), write: "migrated"},
	{has: words("of weights|weight stream"), found: phrase(`\bstreams? of weights\b|\bweight streams?\b`), write: "a prefetch variant"},

	// British spelling. "cancelled" stays: it is a value of the API, of NATS and of metrics.
	{has: words(british), found: phrase(`\w*(` + british + `)(e|es|ed|ing|er|ers|ation|ations)\b`), write: "-ize, -yze",
		except: map[string]string{
			`\banalyses\b`: "a plural noun",
		}},
	{has: words(britishOur), found: phrase(`\b(un)?(` + britishOur + `)(s|ed|ing|able|al|ite|less|hood)?\b`), write: "-or"},
	{has: words(britishForms), found: phrase(`\b(` + britishForms + `)s?\b`), write: "the American form"},

	// Retired names.
	name("tape", "event buffer", "resume", "durable", "api"),
	name("trouble", "lost sequence", "actors"),
	name("told", "reported", "actors"),
	name("odd", "mismatch since", "actors"),
	name("homeless", "unplaced since", "actors"),
	name("pardon", "reset timers", "actors", "cluster"),
	name("deaf", "partitioned", "actors", "cluster", "cmd"),
	name("edge", "admission", "actors", "api"),
	{has: words("room|guest|visitor"), found: regexp.MustCompile(`\b(?:[rR]oom|NewRoom|[gG]uests?|[vV]isitors?)\b`),
		write: "shared limit, entry", in: []string{"actors", "compute/sched", "lab"}, code: true},
	{has: words("line"), found: regexp.MustCompile(`\b(?:NewLine|sched\.Line|type Line|\*Line)\b`), write: "wait estimator",
		in: []string{"actors", "compute/sched", "lab"}, code: true},
	name("ledger", "in-flight table", "actors", "resume", "durable"),
	name("account", "entry", "actors"),
	name("books", "allocator"),
	{has: words("narrow"), found: regexp.MustCompile(`\bnarrow\b|\bNarrow|\bmr_narrow\b|_narrow\b|\bnarrow_`), write: "dequantize",
		in: []string{"kernels/cpu", "kernels/gpu", "kernels/sycl", "kernels/bench", "kernels/CMakeLists.txt"}, code: true},
	{has: words("near"), found: regexp.MustCompile(`\bnear\b|\bNear|_near\b|\bnear_`), write: "prefetch distance",
		in: []string{"kernels/cpu"}, code: true},
	{has: words("few"), found: regexp.MustCompile(`\bfew\b|\bFew|_few\b|\bfew_`), write: "multi-tile", in: []string{"kernels/cpu"},
		code: true},
	{has: words("stream"), found: regexp.MustCompile(`\bStream\b`), write: "a prefetch variant", in: []string{"kernels/cpu"}, code: true},
	{has: words("badnet"), found: regexp.MustCompile(`\bbadnet\b`), write: "fault proxy"},
}

// Beginnings and forms of British spelling.
const (
	british      = "tokenis|quantis|normalis|serialis|initialis|optimis|realis|recognis|organis|summaris|generalis|specialis|synchronis|utilis|minimis|maximis|parallelis|vectoris|analys|prioritis|customis|standardis|finalis|visualis|randomis|authoris|categoris|materialis" //nolint:misspell // the words to find
	britishOur   = "behaviour|colour|favour|honour|neighbour|harbour|labour|rumour|vapour|flavour|endeavour"
	britishForms = "centre|centred|metre|fibre|theatre|litre|calibre|labelled|labelling|modelled|modelling|travelled|signalled|signalling|tunnelled|levelled|fulfil|skilful|whilst|amongst|learnt|spelt|burnt|grey|catalogue|dialogue|analogue|artefact|defence|offence|licence|practise|programme|judgement|afterwards|towards"
)

// notOurs are paths whose text is not ours to write, or is a record, each with the reason.
var notOurs = map[string]string{
	"LICENSE":            "the license's own text",
	"api/web/dist":       "the build of api/web/page, with libraries of others",
	"benchmarks/results": "reports as the programs of their time wrote them",
	"scripts/words":      "the words themselves",
	"testdata":           "data of tests",
	"models":             "the demo model",
}
