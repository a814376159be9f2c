"use strict";
{
  const all = (selector) => [...document.querySelectorAll(selector)];
  const root = document.documentElement;

  const themes = ["", "dark", "light"];
  document.getElementById("theme").addEventListener("click", () => {
    const next = themes[(themes.indexOf(root.dataset.theme || "") + 1) % themes.length];
    if (next) root.dataset.theme = next;
    else delete root.dataset.theme;
  });

  document.getElementById("unfold").addEventListener("click", () => all("details").forEach((d) => (d.open = true)));
  document.getElementById("fold").addEventListener("click", () => all("details").forEach((d) => (d.open = false)));

  // A link to a value unfolds it and all that it lies in.
  const reveal = () => {
    let at = location.hash.startsWith("#n") ? document.getElementById(location.hash.slice(1)) : null;
    const target = at;
    for (; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    if (target) target.scrollIntoView({ block: "center" });
  };
  addEventListener("hashchange", reveal);
  reveal();

  const tree = document.getElementById("tree");
  if (tree) {
    const panel = document.getElementById("stretch");
    const boxes = new Map(all("#tree .box").map((box) => [box.dataset.at, box]));
    const order = [...boxes.values()];
    const show = (box) => {
      order.forEach((one) => one.classList.toggle("at", one === box));
      const facts = document.createElement("p");
      facts.textContent = box.dataset.facts + ": ";
      for (const number of box.dataset.calls.split(" ")) {
        const value = document.getElementById("n" + number);
        if (!value) continue;
        const link = document.createElement("a");
        link.href = "#n" + number;
        link.textContent = value.querySelector(".name").textContent;
        facts.append(link);
      }
      const text = document.createElement("pre");
      text.textContent = box.dataset.text;
      panel.replaceChildren(facts, text);
    };
    const siblings = (box) => order.filter((one) => one.dataset.up === box.dataset.up);
    const moves = {
      ArrowLeft: (box) => boxes.get(box.dataset.up),
      ArrowRight: (box) => boxes.get(box.dataset.first),
      ArrowUp: (box) => siblings(box)[siblings(box).indexOf(box) - 1],
      ArrowDown: (box) => siblings(box)[siblings(box).indexOf(box) + 1],
      Home: () => order[0],
      End: () => order[order.length - 1],
    };
    for (const box of order) {
      box.addEventListener("mouseenter", () => show(box));
      box.addEventListener("focus", () => {
        order.forEach((one) => (one.tabIndex = one === box ? 0 : -1));
        show(box);
      });
      box.addEventListener("click", () => show(box));
      box.addEventListener("keydown", (event) => {
        const next = moves[event.key] && moves[event.key](box);
        if (!(event.key in moves)) return;
        event.preventDefault();
        if (next) next.focus();
      });
    }
  }
}
