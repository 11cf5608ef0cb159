#!/usr/bin/env bash
# Runs the suites of clients, and the checks of specifications, against a server of its own with the demo model. Runs all, then fails if
# one failed.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/sdks/server.sh
source scripts/sdks/server.sh
python=build/sdks/venv/bin/python
failed=()

suite() { if ! "$@"; then failed+=("$*"); fi; }

# comply FORMAT TESTS checks answers against the schemas of an API. Left out are the tests of images, which the demo model does not know,
# of summaries of reasoning and of compaction, which this server does not make, and of the error for a request without a model, which is
# served (docs/api.md). The demo model makes calls until the limit.
comply() {
  suite build/sdks/venv/bin/llm-comply run --base-url "$BASE_URL/v1" --model tiny-chat --api-key none --format "$1" --filter "$2" \
    --ignore "expected 'tool_calls', got 'length',expected 'tool_use', got 'max_tokens',expected status='completed', got 'incomplete'"
}

start_server --model models/tiny-chat
suite "$python" scripts/e2e/other_sdks.py --base-url "$BASE_URL"
suite "$python" scripts/sdks/use_langchain.py
suite "$python" scripts/sdks/use_litellm.py
suite "$python" scripts/sdks/use_instructor.py
suite "$python" scripts/sdks/use_recorded.py
suite node scripts/sdks/use_openai.mjs
suite node scripts/sdks/use_ai_sdk.mjs
comply openai-chat chat-basic-response,chat-system-prompt,chat-multi-turn,chat-tool-calling,chat-streaming-response,chat-streaming-usage
comply open-responses basic-response,system-prompt,multi-turn,tool-calling,streaming-response,streaming-usage,assistant-phase,response-output-phase-schema
comply anthropic anth-basic-response,anth-system-prompt,anth-multi-turn,anth-tool-calling,anth-streaming-response,anth-streaming-usage,anth-error-handling
for line in "${failed[@]}"; do echo "FAILED: $line" >&2; done
[ ${#failed[@]} -eq 0 ]
