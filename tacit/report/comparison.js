
(() => {
  const box = document.querySelector(".sortable");
  const body = box.querySelector("tbody");
  const heads = [...box.querySelectorAll("th")];
  const rows = [...body.rows];
  const state = new URLSearchParams(location.hash.slice(1));
  const bar = document.createElement("p");
  bar.className = "filter";
  bar.innerHTML = '<label>Show rows with <input type="search"></label> <span role="status"></span>';
  box.before(bar);
  const [input, status] = [bar.querySelector("input"), bar.querySelector("span")];
  input.value = state.get("show") || "";

  const show = () => {
    const wanted = (state.get("sort") || "").replace("-", "");
    const sign = (state.get("sort") || "").startsWith("-") ? -1 : 1;
    const column = heads.findIndex((head) => head.dataset.key === wanted);
    const value = (row) => row.cells[column].dataset.value;
    const order = (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === "" || y === "") return (x === "") - (y === "");
      return sign * (isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y);
    };
    body.append(...(column < 0 ? rows : [...rows].sort(order)));
    heads.forEach((head, i) => {
      head.ariaSort = i !== column ? "none" : sign > 0 ? "ascending" : "descending";
    });
    const words = (state.get("show") || "").toLowerCase().trim().split(/ +/);
    rows.forEach((row) => {
      const text = row.textContent.replace(/\s+/g, " ").toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    });
    const shown = rows.filter((row) => !row.hidden).length;
    status.textContent = `${shown} of ${rows.length}`;
  };
  const set = (key, text) => {
    if (text) state.set(key, text); else state.delete(key);
    history.replaceState(null, "", "#" + state);
    show();
  };
  heads.forEach((head) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    button.onclick = () => set("sort", (head.ariaSort === "ascending" ? "-" : "") + head.dataset.key);
    head.append(button);
  });
  document.querySelectorAll(".scroll").forEach((wide) => {
    const hint = document.createElement("p");
    hint.className = "more";
    hint.textContent = "More columns: scroll the table sideways \u2192";
    wide.before(hint);
    const measure = () => { hint.hidden = wide.scrollWidth <= wide.clientWidth; };
    new ResizeObserver(measure).observe(wide);
    measure();
  });
  input.oninput = () => set("show", input.value);
  show();
})();
