// Questions and notes: forms in dialogs, short messages in a corner.

import { el, fill } from "./dom.js";

// Shows a form; `act` gets its values, and an error of it is shown in the form. Resolves to what `act` returned, or null.
export function form({ title, about, fields = [], confirm, danger = false, act }) {
  return new Promise((resolve) => {
    const error = el("p.error", { role: "alert", hidden: true });
    const inputs = fields.map((field) => [field.name, input(field)]);
    const yes = el(`button.button.main${danger ? ".danger" : ""}`, { type: "submit" }, confirm);
    const dialog = el("dialog", { "aria-label": title }, el("form", { method: "dialog", onsubmit: submit },
      el("h1", {}, title),
      about ? el("p.soft", {}, about) : null,
      inputs.map(([, one]) => one.label),
      error,
      el("div.acts", {}, el("button.button", { type: "button", onclick: () => dialog.close() }, "Cancel"), yes),
    ));
    let result = null;
    async function submit(event) {
      event.preventDefault();
      yes.disabled = true;
      try {
        result = (await act(Object.fromEntries(inputs.map(([name, one]) => [name, one.value()])))) ?? true;
        dialog.close();
      } catch (problem) {
        error.hidden = false;
        fill(error, sentence(problem));
        yes.disabled = false;
      }
    }
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(result);
    });
    document.body.append(dialog);
    dialog.showModal();
    (dialog.querySelector("[autofocus]") ?? dialog.querySelector("input, select, textarea") ?? yes).focus();
  });
}

function input(field) {
  const common = { name: field.name, required: field.required, autocomplete: field.autocomplete ?? "off" };
  if (field.type === "checkbox") {
    const box = el("input", { type: "checkbox", name: field.name, checked: field.value ?? false });
    return { label: el("label.check", {}, box, field.label), value: () => box.checked };
  }
  let made;
  if (field.options) {
    made = el("select.field", common, field.options.map(([value, text]) => el("option", { value }, text)));
    if (field.value !== undefined) made.value = field.value;
  } else if (field.type === "text-long") {
    made = el("textarea.field", { ...common, value: field.value ?? "" });
  } else {
    made = el("input.field", { ...common, type: field.type ?? "text", value: field.value ?? "", spellcheck: false });
    if (field.pattern) made.pattern = field.pattern;
    if (field.hint) made.placeholder = field.hint;
  }
  return { label: el("label.stack", {}, field.label, made), value: () => made.value };
}

export const NAME = { required: true, pattern: "[A-Za-z0-9.\\-]+", hint: "letters, digits, . and -" };

export function show(title, ...content) {
  const dialog = el("dialog", { "aria-label": title }, el("form", { method: "dialog" },
    el("h1", {}, title), content, el("div.acts", {}, el("button.button", {}, "Close"))));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

export function note(text, isBad = false) {
  const made = el(`div.note${isBad ? ".bad" : ""}`, {}, text);
  document.getElementById("notes").append(made);
  setTimeout(() => made.remove(), isBad ? 9000 : 4000);
}

export function sentence(problem) {
  const text = String(problem?.message ?? problem);
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}
