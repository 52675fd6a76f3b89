// The hub: search it, see what of a repository fits this machine, download it.
import {html, useState} from "./preact.js";
import {Facts, Problem, Table, bytes, count, go, href, useAnswer} from "./base.js";
import {begin} from "./jobs.js";

const ADDRESS = /^(?:hf:|https?:\/\/(?:hf\.co|huggingface\.co)\/)?([\w.-]+\/[\w.-]+?)\/?$/;

export function Search({words = ""}) {
  const [text, type] = useState(words);
  const send = (event) => {
    event.preventDefault();
    const found = ADDRESS.exec(text.trim());
    go("models", found ? {find: words || " ", repo: found[1]} : {find: text.trim()});
  };
  return html`<form class="bar search" role="search" onSubmit=${send}>
    <input type="search" aria-label="Search the hub" placeholder="Find a model: qwen3 4b, or org/repository" value=${text}
      onInput=${(event) => type(event.target.value)} />
    <button class="main">Search</button></form>`;
}

function Fits({each}) {
  return each.fits ? html`<span class="badge good">fits</span>` : html`<span class="badge bad">too large</span>`;
}

function Repository({repo, find, fail}) {
  const {value, error} = useAnswer(`/-/hub/${repo.split("/").map(encodeURIComponent).join("/")}`);
  const [busy, work] = useState("");
  const fetch = async (source) => {
    work(source);
    try {
      await begin({kind: "download", model: source});
      fail(null);
    } catch (problem) {
      fail(problem);
    }
    work("");
  };
  const back = html`<div class="bar"><a class="button" href=${href("models", {find: find.trim()})}>← ${find.trim() ? "the search" : "all models"}</a></div>`;
  if (error) return html`${back}<${Problem} error=${error} />`;
  if (!value) return html`${back}<p class="soft late">Asking the hub …</p>`;
  const {about} = value;
  return html`${back}<h2>${repo}</h2>
    <${Facts} rows=${[["architecture", about.architecture], ["context", about.context && count(about.context)],
      ["calls are written as", about.format || (about.tools === false ? "nothing: its template has no place for tools" : "")],
      ["engines may use", `${bytes(value.budget)} here`]]} />
    <${Table} label="Files" heads=${[["File"], ["This machine"], ["Size", "number"], [html`<span class="unseen">Download</span>`]]}>
      ${value.variants.map((each) => html`<tr key=${each.source}><td>${each.name}${each.preferred && html`${" "}<span class="badge wide">usual choice</span>`}</td><td><${Fits} each=${each} /></td>
        <td class="number">${bytes(each.size)}</td>
        <td class="stays"><button class="small ${each.preferred ? "main" : ""}" disabled=${Boolean(busy)}
          aria-label=${`Download ${each.name}`} onClick=${() => fetch(each.source)}>${
          busy === each.source ? "begins …" : "Download"}</button></td></tr>`)}
    </${Table}>
    <p class="soft small">“Fits” counts the weights alone; a long context needs more. The download goes on if you close
      this page.</p>`;
}

export default function Hub({find, repo, fail}) {
  const {value, error} = useAnswer(!repo && find.trim() ? `/-/hub?q=${encodeURIComponent(find)}` : "");
  if (repo) return html`<${Repository} repo=${repo} find=${find} fail=${fail} key=${repo} />`;
  if (error) return html`<${Problem} error=${error} />`;
  if (!value) return html`<p class="soft late">Asking the hub …</p>`;
  if (!value.found.length) return html`<p>The hub has no GGUF model for these words.</p>`;
  return html`<${Table} label="Found on the hub" heads=${[["Repository"], ["Downloads", "number"], ["Likes", "number wide"], ["Updated", "wide"]]}>
    ${value.found.map((one) => html`<tr key=${one.source}><td><a href=${href("models", {find, repo: one.source.slice(3)})}>${
      one.source.slice(3)}</a></td><td class="number">${count(one.downloads)}</td><td class="number wide">${count(one.likes)}</td>
      <td class="wide">${one.updated}</td></tr>`)}</${Table}>`;
}
