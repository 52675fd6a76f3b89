// Conversations of the playground, kept in this browser alone: prompts and images are too much for localStorage.

const MOST = 50; // the oldest go
const STORE = "conversations";

let opening = null;
function database() {
  opening = opening || new Promise((done, fail) => {
    const asked = indexedDB.open("ctxgate", 1);
    asked.onupgradeneeded = () => asked.result.createObjectStore(STORE, {keyPath: "id"});
    asked.onsuccess = () => done(asked.result);
    asked.onerror = () => fail(asked.error);
  });
  return opening;
}

async function run(mode, work) {
  const store = (await database()).transaction(STORE, mode).objectStore(STORE);
  return new Promise((done, fail) => {
    const asked = work(store);
    asked.onsuccess = () => done(asked.result);
    asked.onerror = () => fail(asked.error);
  });
}

// The newest first; none where the browser keeps nothing, as some private windows do.
export async function all() {
  try {
    return (await run("readonly", (store) => store.getAll())).sort((one, other) => other.at - one.at);
  } catch {
    return [];
  }
}

export async function save(conversation) {
  try {
    await run("readwrite", (store) => store.put(conversation));
    const found = await all();
    for (const old of found.slice(MOST)) await remove(old.id);
  } catch { /* it lasts as long as the tab */ }
}

export const remove = (id) => run("readwrite", (store) => store.delete(id)).catch(() => {});
export const removeAll = () => run("readwrite", (store) => store.clear()).catch(() => {});
