// Rooms: agents that live on the server, what they were told, said and did.
import {html, useEffect, useRef, useState} from "./preact.js";
import {Problem, Table, ask, clock, events, get, href, useAnswer} from "./base.js";

const KEPT = 500; // events

// The events of a room, those that there are and each new one, and the messages that they speak of, by id.
function useRoom(id) {
  const [found, set] = useState({list: [], messages: {}});
  useEffect(() => {
    const ends = new AbortController();
    let last = 0, read = 0;
    const readMessages = async () => {
      for (let more = true; more;) {
        const {data} = await get(`/llm/room/${id}/history?after_message=${read}&after_event=2147483647`, ends.signal);
        for (const message of data.messages) read = Math.max(read, message.seq);
        const found = Object.fromEntries(data.messages.map((message) => [message.id, message]));
        set((before) => ({...before, messages: {...before.messages, ...found}}));
        more = data.more;
      }
    };
    (async () => {
      while (!ends.signal.aborted) {
        try {
          await readMessages();
          const answer = await ask(`/llm/room/${id}/events?follow=true&after=${last}`, {signal: ends.signal});
          for await (const {data} of events(answer)) {
            const event = JSON.parse(data);
            last = event.seq;
            if (event.event_type === "room:message") await readMessages();
            set((before) => ({...before, error: null, list: added(before.list, event).slice(-KEPT)}));
          }
        } catch (error) {
          if (ends.signal.aborted) return;
          set((before) => ({...before, error}));
        }
        await new Promise((done) => setTimeout(done, 2000));
      }
    })();
    return () => ends.abort();
  }, [id]);
  return found;
}

// Pieces of an answer make one event, until the whole of it comes.
function added(list, event) {
  const last = list[list.length - 1];
  if (!last || last.event_type !== "agent:update") return [...list, event];
  if (event.event_type === "agent:message") return [...list.slice(0, -1), event];
  if (event.event_type !== "agent:update") return [...list, event];
  const text = (last.payload.text || "") + (event.payload.text || "");
  return [...list.slice(0, -1), {...last, payload: {...last.payload, text}}];
}

const facts = (values) => Object.entries(values)
  .filter(([name, value]) => value !== null && typeof value !== "object" && !name.endsWith("_id") && !name.endsWith("_seq"))
  .map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`).join(", ");
const WORDS = {
  "room:rented": "the room was rented", "room:updated": "its settings changed", "room:idle": "it waits for a message",
  "room:sleeping": "it sleeps", "room:failed": "the turn failed", "room:releasing": "it is being released",
  "room:released": "it was released", "agent:turn_end": "the turn ended", "agent:turn_resumed": "the turn goes on",
  "agent:interrupted": "the turn was interrupted", "agent:model_failed": "the model failed",
  "history:compacted": "the beginning was summarised", "tool:call": "called", "tool:result": "answered",
  "tool:missing": "isn't there", "tool:refused": "was refused", error: "error",
};
const HIDDEN = ["agent:model_call", "agent:output", "room:active", "agent:turn_start"]; // others say the same

function Event({event, messages}) {
  const {event_type: type, payload, created_at: at} = event;
  const when = html`<span class="soft">${clock(Date.parse(at) / 1000)}</span>`;
  if (HIDDEN.includes(type)) return null;
  if (type === "room:message") {
    const message = messages[payload.message_id];
    return html`<div class="message"><span class="role">to the agent</span> ${when}
      <div class="text">${message ? message.content : "…"}</div></div>`;
  }
  if (type === "agent:message" || type === "agent:update") {
    const text = payload.content || payload.text;
    return html`<div class="message"><span class="role">${type === "agent:update" ? "the agent writes" : "the agent"}</span> ${when}
      ${text && html`<div class="text">${text}</div>`}</div>`;
  }
  const called = type.startsWith("tool:");
  return html`<div class=${called ? "call" : "message soft"}>${called ? html`<b>${payload.name || payload.tool || ""}</b> ` : ""}
    <span class=${type === "error" ? "bad" : ""} title=${type}>${WORDS[type] || type}</span> ${when} ${called
      ? html`<pre>${JSON.stringify(payload.arguments || payload.result || payload, null, 1)}</pre>` : facts(payload)}</div>`;
}

function Room({room}) {
  const {list, messages, error} = useRoom(room.id);
  const [text, type] = useState("");
  const [problem, fail] = useState(null);
  const box = useRef(null);
  useEffect(() => { box.current.scrollTop = box.current.scrollHeight; }, [list.length]);
  const post = async (verb, json) => {
    try {
      await ask(`/llm/room/${room.id}/${verb}`, {json});
      fail(null);
      return true;
    } catch (found) {
      fail(found);
      return false;
    }
  };
  const say = async (event) => {
    event.preventDefault();
    if (text.trim() && await post("messages", {content: text})) type("");
  };
  const release = () => confirm("Release this room? Its agent ends for good.") && post("release", {});
  return html`<section>
    ${(error || problem) && html`<${Problem} error=${problem || error} />`}
    ${room.last_error && html`<p class="problem">${room.last_error.message}</p>`}
    <div class="boxed" tabindex="0" role="log" aria-label="What happened in the room" ref=${box}>${list.map((event) =>
      html`<${Event} event=${event} messages=${messages} key=${event.id} />`)}</div>
    <form onSubmit=${say}><label>Message to the agent <textarea rows="2" value=${text}
        onInput=${(event) => type(event.target.value)}></textarea></label>
      <div class="bar"><button class="main">Send</button>
        ${["failed", "sleeping"].includes(room.status) && html`<button type="button" title="Run the turn again, or a waiting message's"
          onClick=${() => post("wake", {})}>Wake</button>`}
        <button type="button" onClick=${() => post("interrupt", {})}>Interrupt</button>
        <button type="button" onClick=${release}>Release</button></div></form>
  </section>`;
}

const ACCESS = [["", "no tools"], ["read", "tools that read"], ["edit", "tools that read and edit"], ["full", "all tools"]];

// Asks for what a new room is to be, and rents it.
function Rent({rent, onClose}) {
  const {value} = useAnswer("/v1/models");
  const [form, set] = useState({name: "", model: "", access: ""});
  const field = (name) => (event) => set({...form, [name]: event.target.value});
  const send = (event) => {
    event.preventDefault();
    rent({
      ...(form.name.trim() && {metadata: {name: form.name.trim()}}),
      ...(form.model && {agents: [{model: form.model}]}),
      ...(form.access && {tool_policy: {access: form.access}}),
    });
  };
  return html`<form onSubmit=${send}>
    <label>Name <input value=${form.name} maxlength="64" onInput=${field("name")} /></label>
    <label>Model <select value=${form.model} onChange=${field("model")}><option value="">default</option>
      ${((value && value.data) || []).map((one) => html`<option value=${one.id}>${one.id}</option>`)}</select></label>
    <label>Tools <select value=${form.access} onChange=${field("access")}>
      ${ACCESS.map(([access, words]) => html`<option value=${access}>${words}</option>`)}</select></label>
    <div class="bar"><button class="main">Rent it</button><button type="button" onClick=${onClose}>Cancel</button></div>
  </form>`;
}

export default function Rooms({query}) {
  const {value, error} = useAnswer("/llm/room?limit=200", 5);
  const [problem, fail] = useState(null);
  const [made, make] = useState(null);
  const listed = (value && value.data) || [];
  const rooms = made && !listed.some((room) => room.id === made.id) ? [made, ...listed] : listed;
  const chosen = rooms.find((room) => room.id === query.id);
  const [asks, askFor] = useState(false);
  const rent = async (json) => {
    try {
      const {data} = await (await ask("/llm/room", {json})).json();
      make(data);
      fail(null);
      askFor(false);
      location.hash = href("rooms", {id: data.id}).slice(1);
    } catch (found) {
      fail(found);
    }
  };
  const model = (room) => (room.actors[0] && room.actors[0].model) || "default model";
  return html`<h1>Rooms</h1>
    ${(problem || error) && html`<${Problem} error=${problem || error} />`}
    <div class="split"><div>
      ${asks ? html`<${Rent} rent=${rent} onClose=${() => askFor(false)} />`
        : html`<div class="bar"><button onClick=${() => askFor(true)}>New room</button></div>`}
      ${rooms.length > 0 && html`<${Table} label="Rooms">${rooms.map((room) => html`
        <tr class=${room.id === query.id ? "chosen" : ""}><td><a href=${href("rooms", {id: room.id})}>${
          room.metadata.name || room.purpose || room.id.slice(0, 8)}</a></td>
          <td><span class="badge">${room.status}</span></td><td>${model(room)}</td></tr>`)}</${Table}>`}
      ${value && !rooms.length && html`<p class="soft">No room yet. A room is an agent that lives on the server: it keeps its
        conversation and its tools while no program is connected.</p>`}
    </div>${chosen ? html`<${Room} room=${chosen} key=${chosen.id} />` : html`<p class="soft">${rooms.length ? "Choose a room." : ""}</p>`}</div>`;
}
