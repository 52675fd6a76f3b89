// The frame: views, the state of the connection, keys of the keyboard, dialogs.
import {html, render, useEffect, useErrorBoundary, useRef, useState} from "./preact.js";
import {Lazy, follow, go, href, seconds, setKey, useGateway, useKeyboard, usePlace} from "./base.js";
import {Live} from "./live.js";

const VIEWS = [["live", "Live"], ["models", "Models"], ["playground", "Playground"], ["rooms", "Rooms"],
  ["evaluations", "Evaluations"], ["connect", "Connect"]];
const THEMES = ["auto", "light", "dark"];
const KEYS = [["1 – 6", "change the view"], ["j, k", "next, previous request"], ["Enter", "open it"],
  ["Esc", "back to the list"], ["/", "filter"], ["p", "pause the list"], ["?", "this help"]];

// An error in one view leaves the others alone. All but the first are loaded when they are opened.
function View({view, query}) {
  const [broken, again] = useErrorBoundary();
  if (broken) return html`<p class="problem" role="alert">This view is broken: ${String(broken.message || broken)}
    ${" "}<button class="small" onClick=${again}>Show it again</button></p>`;
  return view === "live" ? html`<${Live} query=${query} />` : html`<${Lazy} from=${`./${view}.js`} query=${query} />`;
}

function Connection({gateway}) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  const age = (Date.now() - gateway.since) / 1000;
  const words = {
    live: "connected",
    connecting: age > 0.3 ? "connecting …" : "",
    lost: `connection lost ${seconds(Math.max(1, Math.round(age)))} ago, trying again`,
    key: "needs a key",
    refused: "not allowed",
  };
  return html`<span class="connection ${gateway.connection}"><span class="dot" aria-hidden="true"></span>${" "}
    ${words[gateway.connection]}</span>`;
}

// Says aloud how the connection is, without the seconds.
const Announced = ({connection}) => html`<p class="unseen" role="status">
  ${{live: "Connected to the gateway.", lost: "Connection lost."}[connection] || ""}</p>`;

function Dialog({title, open, onClose, children}) {
  const box = useRef(null);
  useEffect(() => {
    if (open && !box.current.open) box.current.showModal();
    if (!open && box.current.open) box.current.close();
  }, [open]);
  return html`<dialog ref=${box} onClose=${onClose} aria-label=${title}>
    <h2>${title}</h2>${children}
  </dialog>`;
}

function KeyDialog({open, onClose, asked, problem}) {
  const input = useRef(null);
  const save = (event) => {
    event.preventDefault();
    setKey(input.current.value.trim());
    input.current.value = "";
    onClose();
  };
  return html`<${Dialog} title="API key" open=${open} onClose=${onClose}>
    ${asked && problem && html`<p class="problem" role="alert">${problem}</p>`}
    <p>${asked ? "This gateway answers only callers with a key." : "Only needed if the gateway requires one."}
      ${" "}The page shows the most with a key that has the scope <code>operations</code>:</p>
    <p><code>ctxgate keys add --scope operations --scope models --scope rooms</code></p>
    <form onSubmit=${save}>
      <label>Key <input ref=${input} type="password" autocomplete="off" /></label>
      <p class="soft">It stays in this tab and is forgotten when you close it.</p>
      <div class="bar"><button class="main">Use it</button>
        <button type="button" onClick=${onClose}>Cancel</button></div>
    </form>
  </${Dialog}>`;
}

const Help = ({open, onClose}) => html`<${Dialog} title="Keyboard" open=${open} onClose=${onClose}>
  <dl class="keys">${KEYS.map(([key, what]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl>
  <div class="bar"><button class="main" onClick=${onClose}>Close</button></div>
</${Dialog}>`;

function useTheme() {
  const [theme, set] = useState(localStorage.getItem("ctxgate.theme") || "auto");
  useEffect(() => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    localStorage.setItem("ctxgate.theme", theme);
  }, [theme]);
  return [theme, () => set(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length])];
}

function App() {
  const gateway = useGateway();
  const {view, query} = usePlace();
  const [dialog, open] = useState("");
  const [theme, turn] = useTheme();
  const first = useRef(true);
  useKeyboard((key) => {
    const to = VIEWS[key - 1];
    if (to) go(to[0]);
    else if (key === "?") open("help");
    else return false;
    return true;
  });
  useEffect(() => {
    const found = VIEWS.find(([name]) => name === view);
    document.title = `${found ? found[1] : "Page"} · ctxgate`;
    if (first.current) first.current = false;
    else document.getElementById("view").focus();
  }, [view]);
  const asked = gateway.connection === "key";
  useEffect(() => { if (asked) open("key"); }, [asked]);
  const {status} = gateway;
  const active = status && status.models.find((model) => model.active);
  const problems = status ? [
    ...status.config.problems.map((problem) => `${problem} (the last good configuration is in use)`),
    ...status.config.needs_restart.map((key) => `${key} has changed: restart the gateway to apply it`),
  ] : [];
  const known = VIEWS.some(([name]) => name === view);
  return html`
    <header>
      <a class="brand" href="#/live"><img src="/ui/icon.svg" alt="" width="22" height="22" />ctxgate</a>
      ${status && html`<span class="soft version">${status.version}</span>`}
      <${Connection} gateway=${gateway} />
      ${active && html`<span class="soft active">answers by default: <b>${active.name}</b></span>`}
      <span class="push"></span>
      <button class="quiet" onClick=${() => open("key")}>Key</button>
      <button class="quiet" onClick=${turn} aria-label=${`Theme: ${theme}`} title="Colours: as the system (auto), light or dark"><span class="wide">Theme: </span>${theme}</button>
      <button class="quiet keyboard" onClick=${() => open("help")} aria-label="Keyboard help">?</button>
    </header>
    <nav aria-label="Views">${VIEWS.map(([name, title]) => html`
      <a href=${href(name)} aria-current=${view === name ? "page" : undefined}>${title}</a>`)}
    </nav>
    <${Announced} connection=${gateway.connection} />
    ${problems.map((problem) => html`<p class="problem" role="alert"><strong>config.yaml</strong>${" "}${problem}</p>`)}
    ${gateway.connection === "refused" && html`<p class="problem" role="alert">${gateway.reason}:
      ${" "}Live and Models need it. <button class="small" onClick=${() => open("key")}>Use another key</button></p>`}
    <main id="view" tabindex="-1" class=${gateway.connection === "lost" ? "stale" : ""}>
      ${known ? html`<${View} view=${view} query=${query} key=${view} />`
        : html`<p>There is no such view. <a href="#/live">Live</a></p>`}
    </main>
    <${KeyDialog} open=${dialog === "key"} onClose=${() => open("")} asked=${asked} problem=${gateway.reason} />
    <${Help} open=${dialog === "help"} onClose=${() => open("")} />`;
}

render(html`<${App} />`, document.getElementById("app"));
follow();
