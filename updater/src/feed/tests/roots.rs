//! Pinning the root of trust.

use std::fs;

use super::server::Server;
use super::*;

struct Fresh {
    world: World,
    home: Home,
    root: PathBuf,
    sha256: String,
}

/// A feed, and a home that has pinned nothing yet.
async fn fresh() -> Fresh {
    let world = World::with_release(b"x").await;
    let home = Home::at(world.folder.path().join("fresh"));
    home.create().unwrap();
    let root = world.place.root();
    let sha256 = staging::digest::of(&fs::read(&root).unwrap());
    Fresh {
        world,
        home,
        root,
        sha256,
    }
}

#[tokio::test]
async fn a_root_is_pinned_from_a_file_a_url_or_bytes() {
    let fresh = fresh().await;
    let server = Server::of(&fresh.world.place.feed).await;
    let sources = [
        fresh.root.to_str().unwrap().parse().unwrap(),
        format!("{}metadata/root.json", fresh.world.url())
            .parse()
            .unwrap(),
        format!("{}metadata/root.json", server.url).parse().unwrap(),
        RootSource::Bytes(fs::read(&fresh.root).unwrap()),
    ];
    for source in sources {
        pin_root(&fresh.home, &source, &fresh.sha256.to_uppercase())
            .await
            .unwrap();
        pin_root(&fresh.home, &source, &fresh.sha256).await.unwrap();
        assert_eq!(
            fs::read(fresh.home.trust_root()).unwrap(),
            fs::read(&fresh.root).unwrap()
        );
        fs::remove_file(fresh.home.trust_root()).unwrap();
    }
}

#[tokio::test]
async fn a_root_of_another_digest_or_of_no_worth_is_not_pinned() {
    let fresh = fresh().await;
    let root = RootSource::File(fresh.root.clone());
    for wrong in ["", "00", &"0".repeat(64)] {
        assert_eq!(
            code(pin_root(&fresh.home, &root, wrong).await),
            "ROOT_MISMATCH"
        );
    }
    let text = fs::read_to_string(&fresh.root).unwrap();
    let tampered = text.replacen("\"version\": 1", "\"version\": 2", 1);
    assert_ne!(text, tampered);
    for bytes in ["", "{}", "<html>", &tampered] {
        let (source, sha256) = (
            RootSource::Bytes(bytes.into()),
            staging::digest::of(bytes.as_bytes()),
        );
        assert_eq!(
            code(pin_root(&fresh.home, &source, &sha256).await),
            "ROOT_INVALID",
            "{bytes:.20}"
        );
    }
    let nowhere = RootSource::File(fresh.root.with_file_name("none.json"));
    assert_eq!(
        code(pin_root(&fresh.home, &nowhere, &fresh.sha256).await),
        "ROOT_UNREADABLE"
    );
    assert!(!fresh.home.trust_root().exists());
    let settings = FeedSettings::new(&fresh.world.url()).unwrap();
    assert_eq!(code(Feed::open(&settings, &fresh.home)), "ROOT_MISSING");
    assert_eq!(code(Feed::cached(&fresh.home)), "ROOT_MISSING");
}

#[tokio::test]
async fn another_root_takes_its_place_only_where_a_person_made_room() {
    let (mine, other) = (fresh().await, fresh().await);
    mine.world.release("1.1.0", b"y");
    mine.world.refresh(&mine.world.url()).await.unwrap();
    let home = &mine.world.home;
    let source = RootSource::File(other.root.clone());
    assert_eq!(
        code(pin_root(home, &source, &other.sha256).await),
        "ROOT_ALREADY_PINNED"
    );

    fs::remove_file(home.trust_root()).unwrap();
    pin_root(home, &source, &other.sha256).await.unwrap();
    // The other feed's versions are lower; floors and cache were the first one's and do not hold for it.
    assert_eq!(Feed::cached(home).unwrap().timestamp, None);
    assert_eq!(code(mine.world.refresh(&other.world.url()).await), "none");
}
