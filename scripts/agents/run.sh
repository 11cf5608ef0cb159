#!/usr/bin/env bash
# Runs coding agents and benchmarks as they are. Agents have a model whose answers are written down (scripted/): each calls its own shell tool
# twice, which leaves a file, and repeats what it has read. Benchmarks have the demo model. Runs all, then fails if one failed.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/sdks/server.sh
source scripts/sdks/server.sh
root=$PWD
modules=$root/scripts/agents/node_modules
word=millrace-4711 # of scripted/main.go
failed=()
scripts=() # process ids of scripted servers

stop_all() {
  for pid in "${scripts[@]}"; do kill "$pid" 2>/dev/null || true; done
  stop_server
}
trap stop_all EXIT

# start_scripted ANSWER starts a server with a scripted model that says ANSWER where it has no tool, and sets SCRIPTED_URL.
start_scripted() {
  local log=${work:?of server.sh}/scripted${#scripts[@]}
  SCRIPTED_ANSWER=$1 build/agents/scripted >"$log" &
  scripts+=($!)
  until [ -s "$log" ]; do kill -0 "${scripts[-1]}" && sleep 0.1; done
  SCRIPTED_URL=$(cat "$log")
}

# client NAME FUNCTION runs a function in a new folder, with a home and without the settings of this machine. Its output must have the word.
client() {
  local dir=$work/$1 out
  mkdir -p "$dir/home"
  if out=$(cd "$dir" && env -u OPENAI_API_KEY -u ANTHROPIC_API_KEY HOME="$dir/home" XDG_CONFIG_HOME="$dir/home/config" XDG_DATA_HOME="$dir/home/data" \
    XDG_CACHE_HOME="$dir/home/cache" HF_HUB_OFFLINE=1 timeout 300 bash -c "set -euo pipefail; $(declare -f "$2"); $2" 2>&1 </dev/null) && [[ $out == *"$3"* ]]; then
    echo "$1: passed"
    return
  fi
  echo "$1: FAILED, expected \"$3\" in:"
  echo "$out"
  failed+=("$1")
}

codex() {
  export CODEX_HOME=$HOME/codex
  mkdir -p "$CODEX_HOME"
  cat >"$CODEX_HOME/config.toml" <<END
model = "scripted"
model_provider = "millrace"
[model_providers.millrace]
name = "millrace"
base_url = "$SCRIPTED_URL/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
END
  "$modules/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex" exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox "Make a note."
  grep -x "$word" note.txt
}

claude_code() {
  export ANTHROPIC_BASE_URL=$SCRIPTED_URL ANTHROPIC_API_KEY=none ANTHROPIC_SMALL_FAST_MODEL=scripted CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 IS_SANDBOX=1
  "$modules/@anthropic-ai/claude-code-linux-x64/claude" -p "Make a note." --model scripted --dangerously-skip-permissions
  grep -x "$word" note.txt
}

opencode() {
  export OPENCODE_DISABLE_MODELS_FETCH=1 OPENCODE_DISABLE_AUTOUPDATE=1
  cat >opencode.json <<END
{"autoupdate": false, "share": "disabled", "model": "millrace/scripted", "small_model": "millrace/scripted", "permission": {"*": "allow"},
 "provider": {"millrace": {"npm": "@ai-sdk/openai-compatible", "name": "millrace", "options": {"baseURL": "$SCRIPTED_URL/v1", "apiKey": "none"},
  "models": {"scripted": {"name": "scripted", "tool_call": true, "limit": {"context": 100000, "output": 4096}}}}}}
END
  "$modules/opencode-linux-x64/bin/opencode" run "Make a note."
  grep -x "$word" note.txt
}

llm_tools() {
  export LLM_USER_PATH=$HOME
  cat >"$HOME/extra-openai-models.yaml" <<END
- {model_id: agent, model_name: scripted, api_base: "$SCRIPTED_URL/v1", supports_tools: true}
END
  cat >tool.py <<'END'
import subprocess
def run(command: str) -> str:
    """Runs a command in a shell."""
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout
END
  OPENAI_API_KEY=none "$root/build/agents/llm/bin/llm" -m agent --functions tool.py --chain-limit 5 "Make a note."
  grep -x "$word" note.txt
}

aider() {
  export AIDER_ANALYTICS_DISABLE=true LITELLM_LOCAL_MODEL_COST_MAP=True OPENAI_API_BASE=$SCRIPTED_URL/v1 OPENAI_API_KEY=none
  git init -q .
  git -c user.name=nobody -c user.email=nobody@localhost commit -q --allow-empty -m init
  echo hello >note.txt
  "$root/build/agents/aider/bin/aider" --model openai/scripted --edit-format diff --yes-always --no-check-update --no-show-model-warnings --no-gitignore \
    --no-auto-commits --analytics-disable --map-tokens 0 --no-show-release-notes --no-detect-urls --message "Make a note." note.txt
  grep -x "$word" note.txt
}

lm_eval() {
  cp "$root"/scripts/agents/tasks/* .
  export OPENAI_API_KEY=none
  "$root/build/agents/llm/bin/lm_eval" --model local-completions --tasks capitals --include_path . --output_path scores \
    --model_args "model=tiny-chat,base_url=$BASE_URL/v1/completions,tokenizer=$root/models/tiny-chat,tokenizer_backend=huggingface"
  "$root/build/agents/llm/bin/lm_eval" --model local-chat-completions --tasks says --include_path . --apply_chat_template --output_path scores \
    --model_args "model=tiny-chat,base_url=$BASE_URL/v1/chat/completions"
  cat scores/*/*.json | python3 -c 'import re, sys; print("scores", re.findall(r"\"(?:acc|exact_match),none\": ([0-9.]+)", sys.stdin.read()))'
}

guidellm() {
  printf '{"prompt": "What is the capital of France?"}\n{"prompt": "What is the capital of Italy?"}\n' >prompts.jsonl
  "$root/build/agents/guidellm/bin/guidellm" run --backend "kind=openai_http,target=$BASE_URL,model=tiny-chat" \
    --tokenizer "kind=huggingface_auto,model=$root/models/tiny-chat" --profile kind=synchronous --constraint kind=max_requests,count=2 \
    --data kind=json_file,path=prompts.jsonl --output kind=json,path=out.json --disable-console-interactive
  python3 -c 'import json; print("requests", json.load(open("out.json"))["benchmarks"][0]["metrics"]["request_totals"])'
}

promptfoo() {
  export PROMPTFOO_CONFIG_DIR=$HOME PROMPTFOO_DISABLE_TELEMETRY=1 PROMPTFOO_DISABLE_UPDATE=1 PROMPTFOO_DISABLE_REMOTE_GENERATION=1
  cat >promptfooconfig.yaml <<END
prompts: ['What is the capital of {{country}}?']
providers: [{id: 'openai:chat:tiny-chat', config: {apiBaseUrl: '$BASE_URL/v1', apiKey: none, temperature: 0, max_tokens: 40}}]
tests: [{vars: {country: France}, assert: [{type: contains, value: Paris}]}]
END
  node "$modules/.bin/promptfoo" eval --no-cache --no-table
}

export root modules word SCRIPTED_URL
start_server --model models/tiny-chat
start_scripted ""
client codex codex "The note says $word."
client claude-code claude_code "The note says $word."
client opencode opencode "The note says $word."
client llm llm_tools "The note says $word."
start_scripted $'I change the note.\n\nnote.txt\n<<<<<<< SEARCH\nhello\n=======\n'"$word"$'\n>>>>>>> REPLACE\n'
client aider aider "Applied edit to note.txt"
client lm-eval lm_eval "scores ['1.0', '1.0']"
client guidellm guidellm "'successful': 2"
client promptfoo promptfoo "1 passed (100%)"
if [ ${#failed[@]} -gt 0 ]; then
  echo "FAILED: ${failed[*]}" >&2
  exit 1
fi
