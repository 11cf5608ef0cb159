import { render } from "preact";
import "../theme";
import "../style/base.css";
import "../style/chat.css";
import "../style/text.css";
import { App } from "./app";
import { begin } from "./store";

render(<App />, document.getElementById("app")!);
void begin();
