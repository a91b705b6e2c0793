"use strict";
(() => {
  const table = document.getElementById("claims");
  const claims = table ? [...table.querySelectorAll("tbody.claim")] : [];
  const find = document.getElementById("find");
  const filters = [...document.querySelectorAll(".filter")];

  // Pictures are embedded once, in the gallery; an opened row borrows them.
  const borrow = (claim) => {
    for (const place of claim.querySelectorAll(".borrow:empty")) {
      const source = document.querySelector(`#${place.dataset.picture} img`);
      if (source) place.append(source.cloneNode());
    }
  };
  const setOpen = (claim, opened) => {
    claim.querySelector(".more").hidden = !opened;
    claim.querySelector(".open").setAttribute("aria-expanded", String(opened));
    claim.classList.toggle("opened", opened);
    if (opened) borrow(claim);
  };
  for (const claim of claims) {
    claim.querySelector("tr.row").addEventListener("click", () => {
      if (!String(window.getSelection())) setOpen(claim, claim.querySelector(".more").hidden);
    });
  }

  const show = () => {
    const states = filters.filter((f) => f.getAttribute("aria-pressed") === "true").map((f) => f.dataset.state);
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const claim of claims) {
      const text = claim.textContent.toLowerCase();
      const fits = (!states.length || states.includes(claim.dataset.state)) && words.every((word) => text.includes(word));
      claim.hidden = !fits;
      shown += fits;
    }
    const none = document.getElementById("none");
    if (none) none.hidden = shown > 0;
  };
  for (const filter of filters) {
    filter.addEventListener("click", () => {
      filter.setAttribute("aria-pressed", String(filter.getAttribute("aria-pressed") !== "true"));
      show();
    });
  }
  find.addEventListener("input", show);
  for (const only of document.querySelectorAll(".only")) {
    only.addEventListener("click", () => {
      find.value = only.dataset.find;
      show();
      find.scrollIntoView({ block: "start" });
    });
  }

  const headers = table ? [...table.querySelectorAll("th")] : [];
  const numeric = new Set(["effect", "verdict"]);
  for (const header of headers) {
    header.querySelector("button").addEventListener("click", () => {
      const key = header.dataset.key;
      const sign = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of headers) other.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const order = (a, b) => {
        const [x, y] = [a.dataset[key], b.dataset[key]];
        if (!numeric.has(key)) return sign * x.localeCompare(y, "en", { numeric: true });
        // Rows without a figure stay last whichever way the others run.
        if (x === "" || y === "") return (x === "") - (y === "");
        return sign * (Number(x) - Number(y));
      };
      claims.sort(order);
      table.append(...claims);
    });
  }

  const all = document.getElementById("open-all");
  all.addEventListener("click", () => {
    const opened = all.getAttribute("aria-pressed") !== "true";
    all.setAttribute("aria-pressed", String(opened));
    all.textContent = opened ? "Close all" : "Open all";
    for (const claim of claims) setOpen(claim, opened);
  });

  document.getElementById("all-pictures")?.addEventListener("click", (event) => {
    document.querySelector(".gallery").classList.add("all");
    event.currentTarget.remove();
  });
  const dialog = document.getElementById("zoomed");
  document.addEventListener("click", (event) => {
    const zoom = event.target.closest(".zoom");
    if (zoom) {
      const image = zoom.querySelector("img");
      const large = dialog.querySelector("img");
      large.src = image.src;
      large.alt = image.alt;
      dialog.showModal();
    } else if (event.target === dialog) {
      dialog.close();
    }
    const copy = event.target.closest(".copy");
    if (copy) {
      event.stopPropagation();
      navigator.clipboard?.writeText(copy.dataset.copy).then(() => { copy.textContent = "Copied"; }, () => {});
    }
  });

  const jump = () => {
    const claim = location.hash.startsWith("#claim-") && document.getElementById(location.hash.slice(1));
    if (claim) {
      setOpen(claim, true);
      claim.scrollIntoView({ block: "start" });
    }
  };
  addEventListener("hashchange", jump);
  jump();
})();
