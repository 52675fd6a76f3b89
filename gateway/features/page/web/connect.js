// Connect your program: addresses, a key, and what each known client needs, ready to copy.
import {html, useState} from "./preact.js";
import {Code, Problem, count, hasKey, useAnswer, useGateway} from "./base.js";

const KEY = "unused"; // what the snippets have for a key

function Client({one, own, open, toggle}) {
  const filled = (text) => (own ? text.replaceAll(KEY, own) : text);
  const needs = [one.window > 0 && `a context of ${count(one.window)} tokens`, one.tools && "a model that calls tools"].filter(Boolean);
  return html`<details open=${open} onToggle=${(event) => toggle(event.target.open)}><summary><b>${one.name}</b>
      ${one.launch && html` <span class="soft">ctxgate launch ${one.launch}</span>`}</summary>
    ${needs.length > 0 && html`<p class="soft">It needs ${needs.join(" and ")}.</p>`}
    ${one.launch && html`<p>In one command, which leaves your own configuration as it is:</p><${Code} text=${`ctxgate launch ${one.launch}`} />
      <p>Or for good, in <code>${one.place}</code>:</p>`}
    ${!one.launch && html`<p>In <code>${one.place}</code>:</p>`}
    <${Code} text=${filled(one.snippet).trimEnd()} />
    ${Object.entries(one.also).map(([place, text]) => html`<p>And in <code>${place}</code>:</p><${Code} text=${filled(text).trimEnd()} />`)}
  </details>`;
}

export default function Connect({query}) {
  const {status} = useGateway();
  const key = hasKey();
  const [model, choose] = useState(query.model || "");
  const [typed, type] = useState("");
  const [words, find] = useState("");
  const {value, error} = useAnswer(`/-/clients?address=${encodeURIComponent(location.origin)}&model=${encodeURIComponent(model)}`);
  const [open, show] = useState("");
  const models = (status && status.models) || [];
  const found = value ? value.clients.filter((one) => one.name.includes(words.trim().toLowerCase())) : [];
  return html`<h1>Connect your program</h1>
    ${error && html`<${Problem} error=${error} />`}
    ${value && html`<div class="connect">
      <section><h2>Base URL</h2>
        <dl class="bases">${Object.entries(value.bases).map(([api, url]) => html`<div><dt>${api}</dt><dd><${Code} text=${url} /></dd></div>`)}
          <div><dt>recorded</dt><dd><${Code} text=${value.recorded} /></dd></div></dl>
        <p class="soft small">“recorded” is OpenAI's API, too: Live then shows what the model wrote.</p></section>
      <section><h2>Key</h2>
        ${key ? html`<p>This gateway asks for a key. One for a program alone:</p>` : html`<p>None is needed. Where a program wants one, write <code>${KEY}</code>.
          To ask for keys, make one:</p>`}
        <${Code} text="ctxgate keys add --scope models" />
        <label>Key for the lines below <input type="password" autocomplete="off" placeholder=${KEY} value=${typed} onInput=${(event) => type(event.target.value)} /></label>
        <h2>Model</h2>
        <label>Model for the lines below <select value=${model} onChange=${(event) => choose(event.target.value)}><option value="">default: ${value.model}</option>
          ${models.map((one) => html`<option value=${one.name}>${one.name}</option>`)}</select></label>
        ${value.context_window && html`<p class="soft small">Its context: ${count(value.context_window)} tokens.</p>`}</section></div>
      <h2>Programs</h2>
      <input type="search" aria-label="Find a program" placeholder="Find a program" value=${words} onInput=${(event) => find(event.target.value)} />
      <div class="clients">${found.map((one) => html`<${Client} one=${one} own=${typed.trim()} key=${one.name} open=${open === one.name || found.length === 1}
        toggle=${(is) => show((before) => (is ? one.name : before === one.name ? "" : before))} />`)}</div>
      ${!found.length && html`<p class="soft">Not known by that name: any program works that takes a base URL and a model.</p>`}`}`;
}
