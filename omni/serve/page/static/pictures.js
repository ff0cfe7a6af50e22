// Pictures that are added to the next message: chosen, dropped or pasted.

import { dataUri } from "./pcm.js";

export class Pictures {
  #list = [];
  #shelf = document.getElementById("pictures");

  /** complain: shows a text to the user. */
  constructor(complain) {
    this.complain = complain;
    const file = document.getElementById("file");
    const composer = document.getElementById("composer");
    document.getElementById("add").onclick = () => file.click();
    file.onchange = () => this.add(file.files).then(() => (file.value = ""));
    document.addEventListener("paste", (event) => {
      if (event.clipboardData?.files.length) this.add(event.clipboardData.files);
    });
    for (const name of ["dragenter", "dragover"]) {
      document.addEventListener(name, (event) => {
        event.preventDefault();
        composer.classList.add("drop");
      });
    }
    document.addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) composer.classList.remove("drop");
    });
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      composer.classList.remove("drop");
      this.add(event.dataTransfer.files);
    });
  }

  async add(files) {
    for (const file of files) {
      if (document.body.classList.contains("no-media")) this.complain("The model takes text only.");
      else if (!file.type.startsWith("image/")) this.complain(`${file.name} is not a picture.`);
      else this.#show({ name: file.name, uri: await dataUri(file), shown: URL.createObjectURL(file) });
    }
  }

  /** The pictures, {name, uri, shown}, which are no longer here then. */
  take() {
    const taken = this.#list;
    this.#list = [];
    this.#shelf.replaceChildren();
    return taken;
  }

  #show(picture) {
    this.#list.push(picture);
    const figure = document.createElement("figure");
    const image = document.createElement("img");
    image.src = picture.shown;
    image.alt = picture.name;
    const remove = document.createElement("button");
    remove.type = "button";
    remove.textContent = "×";
    remove.setAttribute("aria-label", `Remove ${picture.name}`);
    remove.onclick = () => {
      this.#list.splice(this.#list.indexOf(picture), 1);
      URL.revokeObjectURL(picture.shown);
      figure.remove();
    };
    figure.append(image, remove);
    this.#shelf.append(figure);
  }
}
