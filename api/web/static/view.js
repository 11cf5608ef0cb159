// Renders the conversation. Texts are inserted as text, never as markup.

function element(tag, className, text = "") {
  const e = document.createElement(tag);
  e.className = className;
  e.textContent = text;
  return e;
}

// addTurn adds a turn and returns functions that change it. Text is drawn at most once per frame.
export function addTurn(log, role) {
  const turn = element("article", `turn ${role}`);
  const body = element("div", "text");
  const stats = element("div", "stats");
  turn.setAttribute("aria-label", role === "user" ? "You" : "Model");
  turn.append(body, stats);
  log.append(turn);
  scrollIfAtEnd(log, true);
  let wanted = "";
  let drawing = false;
  return {
    text(text) {
      wanted = text;
      if (drawing) return;
      drawing = true;
      requestAnimationFrame(() => {
        drawing = false;
        const follow = atEnd(log);
        body.replaceChildren(...blocks(wanted));
        if (follow) log.scrollTop = log.scrollHeight;
      });
    },
    live(on) {
      turn.classList.toggle("live", on);
    },
    stats(text) {
      stats.textContent = text;
    },
    append(e) {
      turn.append(e);
    },
    remove() {
      turn.remove();
    },
  };
}

// blocks returns the parts of a text: fenced code as <pre>, everything else unchanged.
function blocks(text) {
  return text.split("```").map((part, i) => {
    if (i % 2 === 0) return document.createTextNode(part);
    return element("pre", "", part.replace(/^[\w+-]*\n/, ""));
  });
}

export function showError(turn, words, again) {
  const box = element("div", "error");
  const button = element("button", "", "Try again");
  box.setAttribute("role", "alert");
  button.type = "button";
  button.addEventListener("click", again);
  box.append(element("span", "", words), button);
  turn.append(box);
}

export function fill(select, names) {
  select.replaceChildren(...names.map((name) => new Option(name, name)));
}

function atEnd(log) {
  return log.scrollHeight - log.scrollTop - log.clientHeight < 60;
}

export function scrollIfAtEnd(log, force = false) {
  if (force || atEnd(log)) log.scrollTop = log.scrollHeight;
}
