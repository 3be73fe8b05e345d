// Forms and messages in dialogs, and notifications in a corner.

import { el, fill } from "./dom.js";

// Shows a form. `act` gets its values; its errors are shown in the form. Resolves to the result of `act`, or null.
export function form({ title, about, fields = [], confirm, danger = false, act }) {
  return new Promise((resolve) => {
    const error = el("p.error", { role: "alert", hidden: true });
    const inputs = fields.map((field) => [field.name, input(field)]);
    const submitButton = el(`button.button.main${danger ? ".danger" : ""}`, { type: "submit" }, confirm);
    const dialog = el("dialog", { "aria-label": title }, el("form", { method: "dialog", onsubmit: submit },
      el("h1", {}, title),
      about ? el("p.soft", {}, about) : null,
      inputs.map(([, control]) => control.label),
      error,
      el("div.acts", {}, el("button.button", { type: "button", onclick: () => dialog.close() }, "Cancel"), submitButton),
    ));
    let result = null;
    async function submit(event) {
      event.preventDefault();
      submitButton.disabled = true;
      try {
        result = (await act(Object.fromEntries(inputs.map(([name, control]) => [name, control.value()])))) ?? true;
        dialog.close();
      } catch (problem) {
        error.hidden = false;
        fill(error, sentence(problem));
        submitButton.disabled = false;
      }
    }
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(result);
    });
    document.body.append(dialog);
    dialog.showModal();
    (dialog.querySelector("[autofocus]") ?? dialog.querySelector("input, select, textarea") ?? submitButton).focus();
  });
}

function input(field) {
  const common = { name: field.name, required: field.required, autocomplete: field.autocomplete ?? "off" };
  if (field.type === "checkbox") {
    const box = el("input", { type: "checkbox", name: field.name, checked: field.value ?? false });
    return { label: el("label.check", {}, box, field.label), value: () => box.checked };
  }
  let node;
  if (field.options) {
    node = el("select.field", common, field.options.map(([value, text]) => el("option", { value }, text)));
    if (field.value !== undefined) node.value = field.value;
  } else if (field.type === "text-long") {
    node = el("textarea.field", { ...common, value: field.value ?? "" });
  } else {
    node = el("input.field", { ...common, type: field.type ?? "text", value: field.value ?? "", spellcheck: false });
    if (field.pattern) node.pattern = field.pattern;
    if (field.hint) node.placeholder = field.hint;
  }
  return { label: el("label.stack", {}, field.label, node), value: () => node.value };
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
  const node = el(`div.note${isBad ? ".bad" : ""}`, {}, text);
  document.getElementById("notes").append(node);
  setTimeout(() => node.remove(), isBad ? 9000 : 4000);
}

export function sentence(problem) {
  const text = String(problem?.message ?? problem);
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}
