import { render } from "preact";
import { App } from "./app";
import { askSession, session } from "./core/api";
import { startLive } from "./core/live";
import { showOnlyVisibleText } from "./core/visible_text";
import "./styles.css";

showOnlyVisibleText();
render(<App />, document.getElementById("root")!);

/** Ask until the scheduler says who we are: it may be starting. */
function begin(): void {
  askSession()
    .catch(() => {})
    .then(() => {
      if (session.value === null) setTimeout(begin, 1000);
    });
}

begin();
startLive();
